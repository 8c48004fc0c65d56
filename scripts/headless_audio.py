#!/usr/bin/env python3
"""A private PipeWire with a virtual microphone and a virtual loudspeaker, for machines without sound.

    python scripts/headless_audio.py [--if-none] -- COMMAND [ARGUMENT ...]   run COMMAND in it
    python scripts/headless_audio.py --play FILE.wav                         speak into its microphone (from COMMAND)

It needs pipewire and wireplumber, and neither D-Bus nor systemd nor a login. The sink `vmic_in` is the microphone's
other side: what is played into it comes out of the source `vmic`, which is the default source. The sink `speaker` is
the default sink, so that what programs play does not reach the microphone; the sink `headphones` is another choice.

Rules here: standard library only; both daemons are direct children that are waited for; everything lies in one
directory.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType, TracebackType

MICROPHONE = "vmic"
MICROPHONE_INPUT = "vmic_in"
SPEAKER = "speaker"
HEADPHONES = "headphones"

_MICROPHONE = f"""
context.modules = [ {{ name = libpipewire-module-loopback args = {{
  node.description = "Virtual Microphone"  audio.position = [ MONO ]
  capture.props  = {{ node.name = "{MICROPHONE_INPUT}" media.class = "Audio/Sink" }}
  playback.props = {{ node.name = "{MICROPHONE}" media.class = "Audio/Source" priority.session = 3000 }} }} }} ]
"""
_SPEAKER = f"""
context.objects = [ {{ factory = adapter args = {{
  factory.name = support.null-audio-sink  node.name = "{SPEAKER}"  node.description = "Virtual Speaker"
  media.class = "Audio/Sink"  object.linger = true  audio.position = [ FL FR ]  priority.session = 2000 }} }}
  {{ factory = adapter args = {{
  factory.name = support.null-audio-sink  node.name = "{HEADPHONES}"  node.description = "Virtual Headphones"
  media.class = "Audio/Sink"  object.linger = true  audio.position = [ FL FR ]  priority.session = 1000 }} }} ]
"""
# Switches off what would make WirePlumber give up without D-Bus, or look for hardware. Versions before 0.5 read the Lua
# files, later ones the other.
_WIREPLUMBER = {
    "wireplumber/main.lua.d/51-headless.lua": """
alsa_monitor.enabled = false
v4l2_monitor.enabled = false
libcamera_monitor.enabled = false
default_access.properties["enable-flatpak-portal"] = false
""",
    "wireplumber/bluetooth.lua.d/51-headless.lua": "bluez_monitor.enabled = false\n",
    "wireplumber/wireplumber.conf.d/51-headless.conf": """
wireplumber.profiles = { main = {
  monitor.alsa = disabled  monitor.alsa-midi = disabled  monitor.bluez = disabled  monitor.bluez-midi = disabled
  monitor.v4l2 = disabled  monitor.libcamera = disabled
  support.dbus = disabled  support.reserve-device = disabled  support.portal-permissionstore = disabled
  script.client.access-portal = disabled  support.logind = disabled
} }
""",
}
# A unix socket's path has at most 107 bytes, and PipeWire adds up to 20 to its directory.
_LONGEST_RUNTIME_DIR = 87


class HeadlessAudioError(Exception):
    """The daemons cannot be started; the message says which and why."""


class HeadlessAudio:
    """The two daemons and their directories. A context manager: started inside, gone outside.

    Args:
        root: an existing directory, which is filled.
        microphone: whether there is the virtual microphone.
    """

    _start_seconds = 10.0

    def __init__(self, root: Path, *, microphone: bool = True) -> None:
        self._root = root
        runtime = root / "run"
        self._runtime_elsewhere = len(os.fsencode(runtime)) > _LONGEST_RUNTIME_DIR
        self._runtime = Path(tempfile.mkdtemp(prefix="utter-audio-")) if self._runtime_elsewhere else runtime
        self._runtime.mkdir(mode=0o700, exist_ok=True)
        self._config = root / "config"
        self._write("pipewire/pipewire.conf.d/10-headless.conf", _MICROPHONE * microphone + _SPEAKER)
        for path, text in _WIREPLUMBER.items():
            self._write(path, text)
        (root / "state").mkdir(exist_ok=True)
        self._log = (root / "daemons.log").open("ab")
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def environment(self) -> dict[str, str]:
        """What a program needs in its environment to use this PipeWire and no other."""
        return {"XDG_RUNTIME_DIR": str(self._runtime), "PIPEWIRE_RUNTIME_DIR": str(self._runtime)}

    def start(self) -> None:
        """Starts what does not run and returns when the microphone can be recorded.

        Raises:
            HeadlessAudioError: a program is missing, ends at once, or is not ready in time.
        """
        deadline = time.monotonic() + self._start_seconds
        socket = self._runtime / "pipewire-0"
        if "pipewire" not in self._daemons:
            # One that was killed left it behind.
            socket.unlink(missing_ok=True)
        self._spawn("pipewire")
        while not socket.exists():
            self._wait_a_moment(deadline, "PipeWire has made no socket")
        self._spawn("wireplumber")
        while b"value:" not in self._metadata():
            self._wait_a_moment(deadline, "WirePlumber has not chosen a default source")

    def kill(self) -> None:
        """Kills both daemons as a crash would, and waits for them."""
        for daemon in self._daemons.values():
            daemon.kill()
        self._reap()

    def kill_session_manager(self) -> None:
        """Kills WirePlumber alone, which is who connects streams with devices."""
        daemon = self._daemons.pop("wireplumber")
        daemon.kill()
        daemon.wait()

    def restart(self) -> None:
        """Starts again what was killed."""
        self.start()

    def pause(self) -> None:
        """Stops the PipeWire daemon (SIGSTOP): everything stays connected and nothing moves."""
        self._daemons["pipewire"].send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Lets a paused daemon go on."""
        self._daemons["pipewire"].send_signal(signal.SIGCONT)

    def play(self, wav: Path | str, target: str = MICROPHONE_INPUT) -> subprocess.Popen[bytes]:
        """Starts to play a file, by default into the microphone. The caller waits for the process."""
        return subprocess.Popen(["pw-play", "--target", target, str(wav)], env={**os.environ, **self.environment})

    def stop(self) -> None:
        """Ends both daemons and gives everything back; `root` itself stays."""
        for daemon in reversed(self._daemons.values()):
            # A paused daemon does not hear anything else.
            daemon.send_signal(signal.SIGCONT)
            daemon.terminate()
        for daemon in self._daemons.values():
            try:
                daemon.wait(timeout=2)
            except subprocess.TimeoutExpired:
                daemon.kill()
        self._reap()
        self._log.close()
        if self._runtime_elsewhere:
            shutil.rmtree(self._runtime, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _write(self, name: str, text: str) -> None:
        path = self._config / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def _spawn(self, program: str) -> None:
        if program in self._daemons:
            return
        log: IO[bytes] = self._log
        state = str(self._root / "state")
        own = {**self.environment, "XDG_CONFIG_HOME": str(self._config), "XDG_STATE_HOME": state}
        environment = {**os.environ, **own}
        # The daemons do without a session bus, and must not find the user's.
        environment.pop("DBUS_SESSION_BUS_ADDRESS", None)
        if shutil.which(program) is None:
            raise HeadlessAudioError(
                f"{program} is not installed. On Debian and Ubuntu: apt-get install pipewire wireplumber."
            )
        # They are to end with this process even if it is killed; but the kernel means the thread that started them.
        bound = threading.current_thread() is threading.main_thread() and shutil.which("setpriv") is not None
        argv = ["setpriv", "--pdeathsig", "KILL", program] if bound else [program]
        self._daemons[program] = subprocess.Popen(
            argv, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )

    def _metadata(self) -> bytes:
        try:
            done = subprocess.run(
                ["pw-metadata", "0", "default.audio.source"],
                env={**os.environ, **self.environment},
                capture_output=True,
                timeout=self._start_seconds,
                check=False,
            )
        except (FileNotFoundError, subprocess.TimeoutExpired) as error:
            raise HeadlessAudioError(f"pw-metadata cannot be asked for the default source: {error}") from error
        return done.stdout

    def _wait_a_moment(self, deadline: float, what: str) -> None:
        for program, daemon in self._daemons.items():
            if daemon.poll() is not None:
                raise HeadlessAudioError(f"{program} ended with exit status {daemon.returncode}. {self._log_tail()}")
        if time.monotonic() > deadline:
            raise HeadlessAudioError(f"{what} within {self._start_seconds:g} s. {self._log_tail()}")
        time.sleep(0.005)

    def _log_tail(self) -> str:
        text = (self._root / "daemons.log").read_text(encoding="utf-8", errors="replace").strip()
        return f"The daemons said:\n{text[-2000:]}" if text else "The daemons said nothing."

    def _reap(self) -> None:
        for daemon in self._daemons.values():
            daemon.wait()
        self._daemons.clear()


@contextlib.contextmanager
def headless_audio() -> Iterator[HeadlessAudio]:
    """The daemons in a temporary directory that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="utter-audio-") as root, HeadlessAudio(Path(root)) as audio:
        yield audio


def sound_server_runs() -> bool:
    """Whether a PipeWire with a default source answers in the present environment."""
    if shutil.which("pw-metadata") is None:
        return False
    with contextlib.suppress(subprocess.TimeoutExpired):
        asked = ["pw-metadata", "0", "default.audio.source"]
        return b"value:" in subprocess.run(asked, capture_output=True, timeout=3, check=False).stdout
    return False


def run(command: list[str], environment: dict[str, str]) -> int:
    """Runs a command, forwards the signals that mean "end", and returns what a shell would: 128 + N for signal N."""
    child: subprocess.Popen[bytes] | None = None
    early: list[int] = []
    # What is typed on a terminal reaches the command without our help.
    typed = {signal.SIGINT, signal.SIGQUIT} if sys.stdin.isatty() else set()

    def forward(number: int, _frame: FrameType | None) -> None:
        if number in typed:
            return
        if child is None:
            early.append(number)
        else:
            child.send_signal(number)

    ends = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
    before = {number: signal.signal(number, forward) for number in ends}
    try:
        child = subprocess.Popen(command, env={**os.environ, **environment})
        for number in early:
            child.send_signal(number)
        code = child.wait()
    except OSError as error:
        print(f"{command[0]} cannot be run: {error.strerror}", file=sys.stderr)
        return 127
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 128 - code if code < 0 else code


def main(arguments: list[str]) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        description="Run COMMAND with a private PipeWire that has a virtual microphone and a virtual loudspeaker.",
        usage="%(prog)s [--if-none] -- COMMAND [ARGUMENT ...] | --play FILE.wav",
    )
    parser.add_argument("--if-none", action="store_true", help="use the PipeWire that runs already, if there is one")
    parser.add_argument("--play", metavar="FILE.wav", help="play a recording into the microphone, wait for its end")
    parser.add_argument("command", nargs="*", metavar="COMMAND")
    options = parser.parse_args(arguments)
    if bool(options.play) == bool(options.command):
        parser.error("give either a COMMAND after -- or --play FILE.wav")
    if options.play:
        return run(["pw-play", "--target", MICROPHONE_INPUT, options.play], {})
    if options.if_none and sound_server_runs():
        return run(options.command, {})
    try:
        with headless_audio() as audio:
            print(
                f"headless audio: PipeWire with microphone {MICROPHONE!r} (speak into {MICROPHONE_INPUT!r}) in"
                f" {audio.environment['XDG_RUNTIME_DIR']}",
                file=sys.stderr,
            )
            return run(options.command, audio.environment)
    except HeadlessAudioError as error:
        print(f"headless audio: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
