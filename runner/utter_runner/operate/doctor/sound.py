"""Checks of the sound server and of the microphone: whether what arrives is anything but zeros.

Rules here: with the runner up, the microphone is heard through it, because that is what takes effect; without it, the
default source is recorded for half a second. Nothing of what is heard is kept.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from utter_runner.operate.doctor.contact import SILENCE_DB
from utter_runner.operate.doctor.look import DEFAULT_SOURCE
from utter_runner.operate.doctor.model import Finding, broken, ok, warning
from utter_runner.operate.doctor.registry import check
from utter_runner.operate.doctor.words import install

if TYPE_CHECKING:
    from collections.abc import Iterator

    from utter_runner.operate.doctor.look import Look

_RATE: Final = 16_000
_FRAME: Final = 4
_SECONDS: Final = 0.5
_FORMAT: Final = ["--rate", "16000", "--channels", "1", "--format", "f32", "--latency", "100ms"]
_RECORD: Final = ["stdbuf", "-o0", "pw-record", *_FORMAT]
_MANAGERS: Final = ("wireplumber", "pipewire-media-session")
_DEAF: Final = "Nothing of what you say is heard."
_DEVICES: Final = "utter audio devices"


@check("sound.server")
def server(look: Look) -> Iterator[Finding]:
    """Which sound server runs."""
    if look.config.audio.source in ("wav", "none"):
        yield ok(f'[audio] source is "{look.config.audio.source}", which needs no sound server.')
        return
    nodes, problem, dump = look.pipewire()
    pulse = _there(look, f"{look.outside.environ.get('XDG_RUNTIME_DIR', '')}/pulse/native")
    if nodes is not None:
        name = f"PipeWire {_version(dump)}".rstrip()
        yield ok(f"{name}{', with its own PulseAudio' if pulse else ''}.")
    elif any(_program(one.argv) == "pulseaudio" for one in look.processes()):
        yield warning(
            "The sound server is PulseAudio, without PipeWire.",
            'Only [audio] source = "sounddevice" works, and what is plugged in later may go unnoticed.',
            install(look.outside, "pipewire"),
        )
    elif look.outside.which("pw-dump") is None:
        yield warning(
            problem, "Microphones cannot be listed or tested without the runner.", install(look.outside, "pipewire-bin")
        )
    elif not _there(look, _socket(look)):
        yield broken(f"PipeWire does not run: there is no socket {_socket(look)}.", _DEAF, _restart(look, "pipewire"))
    else:
        yield broken(problem, _DEAF, _restart(look, "pipewire"))


def _socket(look: Look) -> str:
    environ = look.outside.environ
    directory = environ.get("PIPEWIRE_RUNTIME_DIR") or environ.get("XDG_RUNTIME_DIR", "")
    return f"{directory}/{environ.get('PIPEWIRE_REMOTE', 'pipewire-0')}"


def _there(look: Look, path: str) -> bool:
    try:
        look.outside.stat(path)
    except OSError:
        return False
    return True


def _program(argv: tuple[str, ...]) -> str:
    return argv[0].rpartition("/")[2]


def _restart(look: Look, program: str) -> str:
    """What starts a part of the sound server: systemd where it is, else the program."""
    return program if look.manager_environ() is None else f"systemctl --user restart {program}"


def _version(dump: str) -> str:
    """The version of the server, out of what pw-dump printed: its core is the first object."""
    with suppress(ValueError, AttributeError, TypeError):
        first, _ = json.JSONDecoder().raw_decode(dump.strip())
        for one in first:
            if one.get("type") == "PipeWire:Interface:Core":
                return str(one["info"]["version"])
    return ""


@check("sound.session")
def session(look: Look) -> Iterator[Finding]:
    """Whether something connects programs with microphones."""
    nodes, _, _ = look.pipewire()
    if nodes is None or look.config.audio.source in ("wav", "none"):
        return
    running = {_program(one.argv) for one in look.processes()}
    found = [name for name in _MANAGERS if name in running]
    if found:
        yield ok(f"The session manager is {found[0]}.")
    else:
        yield broken(
            "PipeWire has no session manager: WirePlumber does not run.",
            "No program is connected with a microphone or a loudspeaker.",
            _restart(look, "wireplumber"),
        )


@check("sound.microphone")
def microphone(look: Look) -> Iterator[Finding]:
    """Whether the microphone gives anything but zeros."""
    source = look.config.audio.source
    if source == "none":
        yield warning(
            'There is no microphone: [audio] source is "none".', _DEAF, look.edit('[audio] source = "sounddevice"')
        )
    elif source == "wav":
        yield warning(
            'A file is heard in place of a microphone: [audio] source is "wav".',
            _DEAF,
            look.edit('[audio] source = "sounddevice"'),
        )
    elif not look.options.microphone:
        yield ok("The microphone was not listened to, as you wanted.")
    elif look.contact().state == "up":
        yield from _through_the_runner(look)
    else:
        yield from _by_ourselves(look)


def _through_the_runner(look: Look) -> Iterator[Finding]:
    heard = look.outside.hear(look.socket, look.options.token)
    if heard.peak_db is None:
        audio: dict[str, Any] = look.status.get("audio") or {}
        said = heard.problem or str(audio.get("detail") or "No sound comes from it.")
        first = (one.mend for part in (server, session) for one in part(look) if one.status == "broken")
        yield _why_no_sound(look) or broken(f"The runner hears nothing. {said}", _DEAF, next(first, "utter audio test"))
    elif heard.peak_db <= SILENCE_DB:
        yield _why_no_sound(look) or _zeros(look, heard.device)
    else:
        yield ok(f"The runner hears the microphone ({heard.device or 'the default'}, peak {heard.peak_db:.0f} dB).")


def _by_ourselves(look: Look) -> Iterator[Finding]:
    if look.pipewire()[0] is None:
        # `sound.server` says why.
        return
    for program, package in (("pw-record", "pipewire-bin"), ("stdbuf", "coreutils")):
        if look.outside.which(program) is None:
            yield warning(
                f"{program} is not installed, so the microphone cannot be tried without the runner.",
                'With [audio] source = "pw-record" the runner hears nothing, either.',
                install(look.outside, package),
            )
            return
    if (reason := _no_source(look)) is not None:
        yield reason
        return
    target = ["--target", look.config.audio.device] if look.config.audio.device and _is_pw(look) else []
    frames, said = look.outside.sample([*_RECORD, *target, "-"], int(_RATE * _SECONDS) * _FRAME)
    if not frames:
        yield _why_no_sound(look) or broken(
            f"The microphone gives no sound at all. {said}".rstrip(), _DEAF, _restart(look, "wireplumber")
        )
    elif not frames.strip(b"\0"):
        yield _why_no_sound(look) or _zeros(look, "")
    else:
        yield ok(f"The microphone can be heard ({_default(look)}).")


def _is_pw(look: Look) -> bool:
    return look.config.audio.source == "pw-record"


def _default(look: Look) -> str:
    nodes = look.pipewire()[0]
    return nodes.default_source if nodes is not None else ""


def _zeros(look: Look, device: str) -> Finding:
    name = device or _default(look) or "the default one"
    what = f"The microphone ({name}) is open and gives nothing but silence."
    volume = look.volume()
    if volume is None:
        return broken(what, f"{_DEAF} Whether it is muted cannot be told: wpctl does not tell.", look.more_time())
    muted = "It is not muted here: perhaps" if volume else "It may be muted,"
    return broken(what, f"{_DEAF} {muted} by a switch on it, or it is another one that you speak into.", _DEVICES)


def _no_source(look: Look) -> Finding | None:
    """What is wrong if there is no microphone, or not the one that is wanted."""
    nodes = look.pipewire()[0]
    if nodes is None:
        return None
    wanted = look.config.audio.device
    if wanted and _is_pw(look):
        if any(wanted in (one.name, one.serial) for one in nodes.sources):
            return None
        return broken(
            f"[audio] device is {wanted!r}, which is not plugged in.",
            _DEAF,
            look.edit("[audio] device = a name that `utter audio devices` lists"),
        )
    if not nodes.sources:
        return broken("PipeWire has no microphone.", _DEAF, "Plug a microphone in, or choose its profile: pavucontrol")
    if nodes.default_source not in {one.name for one in nodes.sources}:
        name = nodes.sources[0].name
        what = "No microphone is the default one"
        if nodes.default_source:
            what = f"The default source is {nodes.default_source}, which is no microphone but what a loudspeaker plays"
        chosen = json.dumps({"name": name})
        return broken(f"{what}.", _DEAF, f"pw-metadata 0 default.configured.audio.source '{chosen}' Spa:String:JSON")
    return None


def _why_no_sound(look: Look) -> Finding | None:
    """Why a microphone that is open gives nothing, if PipeWire knows it."""
    if (found := _no_source(look)) is not None:
        return found
    volume = look.volume() or ""
    if "MUTED" in volume:
        return broken(f"The microphone ({_default(look)}) is muted.", _DEAF, f"wpctl set-mute {DEFAULT_SOURCE} 0")
    # It prints such as "Volume: 0.40".
    words = volume.split()
    with suppress(ValueError):
        if len(words) > 1 and float(words[1]) == 0:
            return broken(
                f"The volume of the microphone ({_default(look)}) is 0.",
                _DEAF,
                f"wpctl set-volume {DEFAULT_SOURCE} 100%",
            )
    return None
