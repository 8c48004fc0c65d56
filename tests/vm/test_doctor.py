"""`utter doctor` on a machine that is in order, and on one that is broken in every way that a user meets.

Each break is made as it happens to people. The doctor must name it with a mend; the mend is carried out word for word,
and then the finding must be gone.
"""

from __future__ import annotations

import json
import shlex
import signal
from typing import Any

import pytest

from vm.bed.guest import Guest, GuestError, Job
from vm.service import PIECES, SOCKET, UNIT, Service

PLUGINS = {"ear", "commands", "desktop"}
# Recording all the time takes an emulated processor half of its time; the doctor listens when it looks.
EXTRA = '[socket]\nallow_same_uid = true\n[audio]\ncapture = "on-demand"\n'
WHISPER = '[[plugin]]\nid = "whisper"\npass_env = ["XDG_DATA_HOME"]\n[plugin.settings]\nmodel = "nonesuch"\n'
# A room is never silent; a cable into which nobody plays is.
ROOM = ("speaker-test", "-t", "pink", "-D", "hw:Loopback,1,0", "-c", "2", "-r", "48000", "-F", "S16_LE", "-l", "0")
_CARD = "/sys/bus/platform/drivers/snd_aloop"
# What the doctor has for all that it looks at, four times as long as on another machine.
PATIENCE = 40.0
# The longest that a mend takes to be seen.
LIMIT = 90.0
# What is so of this guest and wanted there.
EXPECTED = {
    # The guest's user has no login to end.
    "service.linger",
}


class Room:
    """What the microphone hears while nobody speaks."""

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        self._playing: Job | None = None

    def sounds(self) -> None:
        """From now on it hears something, once the session manager has found the sound card.

        The session manager leaves out a card of which any end is in use when it looks.
        """
        self._guest.ask("volume")
        self._playing = self._guest.start(*ROOM, timeout=3600)

    def hush(self) -> None:
        """Let go of the card; a card that was unplugged has already ended what played there."""
        if self._playing is not None and self._playing.answers.empty():
            self._playing.signal(signal.SIGKILL)
            self._playing.wait()
        self._playing = None


@pytest.fixture(scope="module")
def room(guest: Guest) -> Room:
    return Room(guest)


@pytest.fixture(scope="module")
def machine(guest: Guest, service: Service, room: Room) -> Service:
    room.sounds()
    service.put_plugin("ear")
    service.install(PIECES, extra=EXTRA)
    service.plug()
    return service


def doctor(service: Service) -> dict[str, Any]:
    """The doctor's report, whose exit code is that of the command."""

    def look() -> dict[str, Any] | None:
        done = service.utter("doctor", "--json", "--timeout", f"{PATIENCE:g}", timeout=300)
        report: dict[str, Any] = json.loads(done.out)
        assert report["exit"] == done.code, done
        # What an emulated machine has not found out in time is to be asked again: so it says.
        return None if any(one["mend"].startswith("utter doctor") for one in report["findings"]) else report

    found: dict[str, Any] = service.guest.until("the doctor has looked at everything", look)
    return found


def problems(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What is wrong, by its check."""
    return {one["check"]: one for one in report["findings"] if one["status"] != "ok"}


def wrong(service: Service, check: str) -> dict[str, Any]:
    """The finding of a check that must find something; it names what is wrong, why that matters and a mend."""
    found = problems(doctor(service))
    assert check in found, found
    finding = found[check]
    assert finding["what"]
    assert finding["why"]
    assert finding["mend"]
    return finding


def carry_out(service: Service, finding: dict[str, Any]) -> None:
    """Do what the doctor says, as the user, or as root where it says sudo."""
    command = finding["mend"]
    user = "root" if command.startswith("sudo ") else "alice"
    service.guest.run("sh", "-c", command.removeprefix("sudo "), user=user, timeout=300).ok()


def settled(service: Service) -> dict[str, Any]:
    """Wait until the machine is in order again, as the doctor sees it; return that report."""

    def well(status: dict[str, Any]) -> bool:
        ready = {one["id"] for one in status["plugins"] if one["status"] == "ready"}
        return status["state"] == "ready" and ready == PLUGINS

    reports: list[dict[str, Any]] = []

    def fine() -> bool:
        reports.append(doctor(service))
        return set(problems(reports[-1])) <= EXPECTED

    service.until("the plugins are ready", well)
    try:
        service.guest.until("the doctor finds nothing else", fine, LIMIT)
    except GuestError as error:
        raise GuestError(f"{error}; it finds {problems(reports[-1])}") from None
    return reports[-1]


def test_a_machine_that_is_in_order(machine: Service) -> None:
    report = settled(machine)
    assert report["state"] == "up"
    assert report["exit"] == 1
    assert {name: one["status"] for name, one in problems(report).items()} == dict.fromkeys(EXPECTED, "warning")
    assert {one["id"]: one["status"] for one in report["plugins"]} == dict.fromkeys(PLUGINS, "ready")
    assert report["drift"] == []
    said = {one["check"]: one["what"] for one in report["findings"]}
    assert "evdev" in said["keys.path"]
    assert "hears the microphone" in said["sound.microphone"]
    assert "active" in said["service.unit"]


def test_the_microphone_is_muted(machine: Service) -> None:
    machine.guest.run("wpctl", "set-mute", "@DEFAULT_AUDIO_SOURCE@", "1").ok()
    finding = wrong(machine, "sound.microphone")
    assert "muted" in finding["what"], finding
    carry_out(machine, finding)
    settled(machine)


def test_the_sound_server_is_down(machine: Service, room: Room) -> None:
    room.hush()
    machine.systemctl(
        "stop", "pipewire.socket", "pipewire.service", "pipewire-pulse.socket", "wireplumber.service"
    ).ok()
    finding = wrong(machine, "sound.server")
    assert "PipeWire" in finding["what"], finding
    carry_out(machine, finding)

    def plays() -> bool:
        # What the doctor says is done until it says nothing more; the session manager may be the next.
        left = problems(doctor(machine))
        if mend := left.get("sound.server") or left.get("sound.session"):
            carry_out(machine, mend)
        return mend is None

    machine.guest.until("the sound server and its session manager run", plays)
    room.sounds()
    settled(machine)


def test_the_microphone_is_unplugged(machine: Service, guest: Guest, room: Room) -> None:
    guest.run("sh", "-c", f"echo snd_aloop.0 > {_CARD}/unbind", user="root").ok()
    finding = wrong(machine, "sound.microphone")
    assert "no microphone" in finding["what"].lower(), finding
    assert "lug" in finding["mend"]
    room.hush()
    guest.run("sh", "-c", f"echo snd_aloop.0 > {_CARD}/bind", user="root").ok()
    room.sounds()
    settled(machine)


def test_the_runner_was_killed_and_its_socket_is_stale(machine: Service, guest: Guest) -> None:
    # As after a crash of a runner that nobody restarts.
    machine.systemctl("kill", "--signal=KILL", UNIT).ok()
    machine.systemctl("stop", UNIT).ok()
    if guest.run("test", "-S", SOCKET).code:
        left = "import socket; socket.socket(socket.AF_UNIX).bind('" + SOCKET + "')"
        guest.run("python3", "-c", left).ok()
    report = doctor(machine)
    assert (report["state"], report["exit"]) == ("stale", 2)
    carry_out(machine, problems(report)["runner.answers"])
    settled(machine)


def test_the_configuration_is_wrong_and_the_unit_has_failed(machine: Service, guest: Guest) -> None:
    machine.configure_more(PIECES, extra=EXTRA + "[hotkey]\npush_to_talk = 1\n")
    machine.systemctl("restart", UNIT)
    guest.until("the unit has failed", lambda: machine.show("ActiveState") == "failed")
    found = problems(doctor(machine))
    assert any("hotkey" in one["what"] for name, one in found.items() if name.startswith("config.")), found
    assert "failed" in found["service.unit"]["what"]
    machine.configure_more(PIECES, extra=EXTRA)
    carry_out(machine, found["service.unit"])
    settled(machine)


def test_the_model_is_missing(machine: Service) -> None:
    machine.configure_more(WHISPER + PIECES, extra=EXTRA)
    try:
        machine.utter("reload")
        machine.until("the runner knows", lambda status: any("nonesuch" in one["detail"] for one in status["plugins"]))
        found = problems(doctor(machine)).values()
        named = [one for one in found if "nonesuch" in one["what"]]
        assert named, found
        assert named[0]["mend"]
    finally:
        machine.configure_more(PIECES, extra=EXTRA)
        machine.utter("reload").ok()
    settled(machine)


def test_a_runner_that_stands_still(machine: Service) -> None:
    pid = machine.main_pid()
    # Its watchdog would end this before anybody has looked.
    machine.systemctl("service-watchdogs", "no").ok()
    try:
        machine.guest.run("kill", "-STOP", str(pid)).ok()
        report = doctor(machine)
        assert (report["state"], report["exit"]) == ("wedged", 2)
        finding = problems(report)["runner.answers"]
        assert str(pid) in finding["what"]
        carry_out(machine, finding)
        settled(machine)
    finally:
        machine.systemctl("service-watchdogs", "yes").ok()
    assert machine.main_pid() == pid


def test_the_unit_is_not_installed(machine: Service, guest: Guest) -> None:
    machine.utter("service", "remove", timeout=300).ok()
    finding = wrong(machine, "service.unit")
    assert shlex.split(finding["mend"])[:3] == ["utter", "service", "install"]
    carry_out(machine, finding)
    settled(machine)


def test_the_user_may_not_read_keyboards(machine: Service, guest: Guest, room: Room) -> None:
    guest.run("gpasswd", "-d", "alice", "input", user="root").ok()
    log_in_again(machine, room)
    finding = wrong(machine, "keys.path")
    assert "input" in finding["what"]
    carry_out(machine, finding)
    # The account is in order now, and what runs was started before.
    finding = wrong(machine, "keys.path")
    assert finding["mend"] == "loginctl terminate-user alice"
    log_in_again(machine, room)
    settled(machine)


def log_in_again(service: Service, room: Room) -> None:
    """What logging out and in does: the user's manager and all that it runs begin anew."""
    room.hush()
    service.guest.run("systemctl", "restart", "user@1000.service", user="root", timeout=300).ok()
    room.sounds()
    service.systemctl("start", UNIT).ok()
    service.ready("ear", "commands", "desktop")
