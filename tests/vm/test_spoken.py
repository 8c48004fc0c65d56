"""The main job on a real machine: a kernel keyboard, a sound card, the user's service manager, an application.

What is recognised is recognised by pocketsphinx: whisper tiny.en takes minutes for each encoding when emulated. All
else is what a user has.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from vm.bed.guest import Guest, GuestError
from vm.service import KEYBOARD, PIECES, Service

SENTENCE = "recorded_lock_the_front_door.wav"
DOOR = "/home/alice/door"
PHRASES = """
[[phrase]]
say = "lock the front door"
op = "launch_app"
args = { app = "door" }
"""
APPLICATION = """[Desktop Entry]
Type=Application
Name=Door
Exec=/home/alice/.local/bin/door
"""
# It goes on running, as an application does, and tells where.
PROGRAM = """#!/bin/sh
cat /proc/self/cgroup >> $HOME/door
exec sleep 600
"""
_CARD = "/sys/bus/platform/drivers/snd_aloop"


@pytest.fixture(scope="module")
def speaking(guest: Guest, service: Service) -> Service:
    """The runner as a service, with a keyboard, a microphone, a sentence that it was taught and an application."""
    guest.write(".config/utter/phrases.toml", PHRASES)
    guest.write(".local/share/applications/door.desktop", APPLICATION)
    guest.write(".local/bin/door", PROGRAM, mode=0o755)
    service.put_plugin("ear")
    service.install(PIECES)
    service.plug()
    return service


def opened(guest: Guest) -> str:
    """Wait until the application has started; return what it told."""
    told: str = guest.until("the application starts", lambda: guest.read(DOOR))
    guest.run("rm", DOOR).ok()
    return told


def heard(service: Service, tries: int = 1) -> dict[str, Any]:
    """Hold the key, say the sentence, release; return what the application's audit line says.

    Args:
        tries: how often it may be said: a sentence that is cut off by a fault of the microphone is to be said again.
    """
    before = len(service.audit())
    for _ in range(tries):
        hold(service)
        service.say(SENTENCE)
        service.key(0)
        service.until("it is idle", lambda status: status["voice"]["state"] == "idle")
        with suppress(GuestError):
            # It is written by a thread of its own.
            lines = service.guest.until("the audit has it", lambda: service.audit()[before:], limit=10)
            opened(service.guest)
            found: dict[str, Any] = lines[-1]
            return found
    raise AssertionError(f"nothing was done after {tries} tries")


def hold(service: Service) -> str:
    """Press the key; return the session that listens then."""
    service.key(1)

    def listening(status: dict[str, Any]) -> str | None:
        voice = status["voice"]
        return voice["session"] if voice["state"] == "listening" else None

    session: str = service.until("it listens", listening)
    return session


def test_a_held_key_and_a_spoken_sentence_become_an_action(guest: Guest, speaking: Service) -> None:
    session = hold(speaking)
    speaking.say(SENTENCE)
    speaking.key(0)
    where = opened(guest)
    # The application is in a scope of its own, so that it outlives the runner.
    assert "app.slice/app-utter-door" in where
    assert speaking.show("ActiveState") == "active"
    (line,) = guest.until("the audit has it", speaking.audit)
    assert (line["op"], line["result"]["status"], line["source"]["kind"]) == ("launch_app", "ok", "voice")
    (record,) = speaking.journal(f"SESSION={session}", "--grep", "voice session")
    assert record["MESSAGE"] == f"voice session {session}: done"
    # What was said is nowhere in the log.
    assert "front door" not in guest.journal()


def test_the_keyboard_that_is_unplugged_while_the_key_is_held_releases_it(guest: Guest, speaking: Service) -> None:
    hold(speaking)
    speaking.say(SENTENCE)
    guest.ask("unplug", name=KEYBOARD)
    opened(guest)
    status = speaking.until("it is idle", lambda status: status["voice"]["state"] == "idle" and status)
    assert KEYBOARD not in status["hotkeys"]["devices"]
    # And one that is plugged in afterwards is watched, with the same key.
    speaking.plug()
    assert heard(speaking)["result"]["status"] == "ok"


def test_a_sound_card_that_is_unplugged_is_told_and_used_again(guest: Guest, speaking: Service) -> None:
    guest.run("sh", "-c", f"echo snd_aloop.0 > {_CARD}/unbind", user="root").ok()
    told = speaking.until("it is missed", lambda status: not status["audio"]["open"] and status["audio"]["detail"])
    assert "microphone" in told or "No audio" in told, told
    guest.run("sh", "-c", f"echo snd_aloop.0 > {_CARD}/bind", user="root").ok()
    speaking.until("the microphone is back", lambda status: status["audio"]["open"] and not status["audio"]["detail"])
    guest.ask("volume")
    assert heard(speaking, tries=3)["result"]["status"] == "ok"
    assert speaking.show("NRestarts") == "0"


def test_a_sound_server_that_is_restarted_is_found_again(guest: Guest, speaking: Service) -> None:
    faults = speaking.ready()["audio"]["faults"]
    speaking.systemctl("restart", "pipewire.service", "wireplumber.service").ok()
    speaking.until("the fault was seen", lambda status: status["audio"]["faults"] > faults)
    speaking.until("the microphone is back", lambda status: status["audio"]["open"] and not status["audio"]["detail"])
    guest.ask("volume")
    assert heard(speaking, tries=3)["result"]["status"] == "ok"
    assert speaking.show("NRestarts") == "0"


def test_a_sound_server_that_is_stopped_is_told_and_its_start_is_noticed(guest: Guest, speaking: Service) -> None:
    units = ("pipewire.socket", "pipewire.service", "pipewire-pulse.socket", "pipewire-pulse.service")
    speaking.systemctl("stop", *units, "wireplumber.service").ok()
    told = speaking.until("it is told", lambda status: not status["audio"]["open"] and status["audio"]["detail"])
    assert "PipeWire" in told or "sound server" in told or "audio server" in told, told
    speaking.systemctl("start", *units, "wireplumber.service").ok()
    speaking.until("the microphone is back", lambda status: status["audio"]["open"] and not status["audio"]["detail"])
    guest.ask("volume")
    assert heard(speaking, tries=3)["result"]["status"] == "ok"
