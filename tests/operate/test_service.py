from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utter_runner.cli import service as command
from utter_runner.operate.errors import OperateError, Untrusted
from utter_runner.operate.program import runner_program
from utter_runner.operate.service import (
    Change,
    ServiceState,
    choose_target,
    install,
    plan_install,
    remove,
    service_state,
    unit_directory,
)
from utter_runner.operate.systemctl import Answer, FakeSystemctl, UserSystemctl, manager_problem, properties
from utter_runner.operate.units import (
    DROP_IN,
    HARDENING,
    SERVICE,
    SOCKET,
    hardening,
    is_ours,
    quoted,
    service_unit,
    shipped,
    socket_unit,
)

ROOT = Path(__file__).parents[2]
NO_BUS = Answer(1, "", "Failed to connect to bus: No medium found")


def unquoted(text: str) -> str:
    """What systemd makes of a quoted word: escapes, then specifiers and variables."""
    assert text[0] == text[-1] == '"'
    read, rest = "", text[1:-1]
    while rest:
        if rest[0] == "\\":
            assert rest[1] in '\\"'
            read, rest = read + rest[1], rest[2:]
        elif rest[:2] in ("%%", "$$"):
            read, rest = read + rest[0], rest[2:]
        else:
            assert rest[0] not in '%$"'
            read, rest = read + rest[0], rest[1:]
    return read


@given(word=st.text(st.characters(exclude_categories=["Cc", "Cs"])))
def test_a_word_is_read_back(word: str) -> None:
    assert unquoted(quoted(word)) == word


def test_a_control_character_is_refused() -> None:
    with pytest.raises(OperateError, match="control character"):
        service_unit(Path("/a\nExecStartPre=/bin/evil"))


def test_the_units_in_the_tree_are_those_that_ship() -> None:
    for name in (SERVICE, SOCKET, HARDENING):
        assert (ROOT / "systemd" / name).read_text() == shipped(name)


def test_a_unit_names_its_installation(tmp_path: Path) -> None:
    text = service_unit(Path("/opt/a b/100%/utter-runner"), Path("/c $d/runner.toml"), "default.target")
    lines = text.splitlines()
    assert 'ExecStart="/opt/a b/100%%/utter-runner" --config "/c $$d/runner.toml"' in lines
    assert "WantedBy=default.target" in lines
    assert is_ours(text)
    assert not is_ours(shipped(SERVICE))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_understands_the_units(tmp_path: Path) -> None:
    program = tmp_path / "a b 100% $HOME" / "utter-runner"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (tmp_path / SERVICE).write_text(service_unit(program, tmp_path / "c d.toml"))
    (tmp_path / SOCKET).write_text(socket_unit())
    (tmp_path / DROP_IN).parent.mkdir()
    (tmp_path / DROP_IN).write_text(hardening())
    env = {**os.environ, "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    argv = ["systemd-analyze", "verify", "--user", "--man=no", f"./{SERVICE}", f"./{SOCKET}"]
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


# ---- installing and removing


class Machine:
    """A home, an installation in it, and a user manager that answers as one does."""

    def __init__(self, tmp_path: Path) -> None:
        self.environ = {"HOME": str(tmp_path), "USER": "ada"}
        self.interpreter = str(tmp_path / "bin" / "python")
        program = tmp_path / "bin" / "utter-runner"
        program.parent.mkdir()
        program.touch(mode=0o755)
        self.units = tmp_path / ".config" / "systemd" / "user"
        self.linger = tmp_path / "linger"
        self.linger.mkdir()
        self.theirs = ""
        self.target = "inactive"
        self.shown = "LoadState=not-found\nActiveState=inactive\n"
        self.systemctl = FakeSystemctl({"show": self.show, "show-environment": lambda *_: Answer(0, self.theirs, "")})

    def show(self, *arguments: str) -> Answer:
        answers = {SERVICE: self.shown, "graphical-session.target": f"ActiveState={self.target}\n"}
        return Answer(0, answers.get(arguments[1], ""), "")

    def state(self) -> ServiceState:
        return service_state(self.environ, self.systemctl, self.interpreter, self.linger)

    def plan(self, *, socket: bool = False, target: str = "graphical-session.target") -> list[Change]:
        program = runner_program(self.interpreter)
        return plan_install(self.environ, program, config=None, target=target, with_socket=socket)

    def done(self) -> list[tuple[str, ...]]:
        return [call for call in self.systemctl.calls if not call[0].startswith("show")]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_installing_writes_enables_and_starts(machine: Machine) -> None:
    install(machine.plan(), machine.systemctl, start=True, replace=False)
    assert machine.done() == [("daemon-reload",), ("reenable", SERVICE), ("restart", SERVICE)]
    (unit,) = machine.units.iterdir()
    assert unit.stat().st_mode & 0o777 == 0o644
    assert f'ExecStart="{machine.interpreter[:-6]}utter-runner"' in unit.read_text().splitlines()
    (again,) = machine.plan()
    assert again.before == again.after
    state = machine.state()
    assert (state.written_by, state.outdated) == ("utter", False)


def test_the_socket_is_made_while_nobody_serves_it(machine: Machine) -> None:
    install(machine.plan(socket=True), machine.systemctl, start=True, replace=False)
    assert machine.done()[1:] == [
        ("reenable", SERVICE, SOCKET), ("stop", SERVICE), ("start", SOCKET), ("restart", SERVICE),
    ]  # fmt: skip


def test_what_somebody_else_wrote_is_left_alone(machine: Machine) -> None:
    machine.units.mkdir(parents=True)
    unit = machine.units / SERVICE
    unit.write_text("[Service]\n")
    with pytest.raises(Untrusted, match="--replace"):
        install(machine.plan(socket=True), machine.systemctl, start=True, replace=False)
    with pytest.raises(Untrusted, match="--replace"):
        remove(machine.environ, machine.systemctl, replace=False)
    assert unit.read_text() == "[Service]\n"
    assert machine.done() == []
    assert machine.state().written_by == "other"
    install(machine.plan(), machine.systemctl, start=False, replace=True)
    assert is_ours(unit.read_text())


def test_what_systemd_refuses_is_told_in_its_words(machine: Machine) -> None:
    machine.systemctl.answers["restart"] = Answer(1, "", "Job for utter-runner.service failed.")
    with pytest.raises(OperateError, match=r"restart utter-runner.service: Job for .* failed\. .*journalctl"):
        install(machine.plan(), machine.systemctl, start=True, replace=False)


def test_removing_stops_and_deletes_and_is_harmless_twice(machine: Machine) -> None:
    install(machine.plan(socket=True), machine.systemctl, start=False, replace=False)
    machine.systemctl.calls.clear()
    assert {path.name for path in remove(machine.environ, machine.systemctl, replace=False)} == {SERVICE, SOCKET}
    assert machine.done()[0] == ("disable", "--now", SOCKET, SERVICE)
    assert list(machine.units.iterdir()) == []
    assert remove(machine.environ, machine.systemctl, replace=False) == []


def test_hardening_is_a_drop_in_beside_those_of_others(machine: Machine) -> None:
    program = runner_program(machine.interpreter)

    def harden() -> None:
        wanted = plan_install(
            machine.environ, program, config=None, target="default.target", with_socket=False, hardened=True
        )
        install(wanted, machine.systemctl, start=False, replace=False)

    harden()
    assert machine.done() == [("daemon-reload",), ("reenable", SERVICE)]
    drop_in = machine.units / DROP_IN
    assert "NoNewPrivileges=yes" in drop_in.read_text()
    (drop_in.parent / "mine.conf").touch()
    remove(machine.environ, machine.systemctl, replace=False)
    assert [path.name for path in drop_in.parent.iterdir()] == ["mine.conf"]
    harden()
    (drop_in.parent / "mine.conf").unlink()
    remove(machine.environ, machine.systemctl, replace=False)
    assert list(machine.units.iterdir()) == []


def test_without_a_manager_the_units_can_still_be_removed(machine: Machine) -> None:
    install(machine.plan(), machine.systemctl, start=False, replace=False)
    dead = FakeSystemctl({"show": NO_BUS})
    assert len(remove(machine.environ, dead, replace=False)) == 1
    assert dead.calls == [("show", "--property=Version")]


def test_an_installation_without_the_runner_is_told(tmp_path: Path) -> None:
    with pytest.raises(OperateError, match="beside this Python"):
        runner_program(str(tmp_path / "python"))


def test_the_place_of_units() -> None:
    assert unit_directory({"XDG_CONFIG_HOME": "/c", "HOME": "/h"}) == Path("/c/systemd/user")
    assert unit_directory({"XDG_CONFIG_HOME": "c", "HOME": "/h"}) == Path("/h/.config/systemd/user")
    with pytest.raises(OperateError, match="HOME"):
        unit_directory({})


# ---- looking


def test_the_state_is_what_systemd_says(machine: Machine) -> None:
    install(machine.plan(), machine.systemctl, start=False, replace=False)
    machine.shown = (
        f"LoadState=loaded\nFragmentPath={machine.units / SERVICE}\nUnitFileState=enabled\nActiveState=active\n"
        "SubState=running\nStatusText=8 of 9 plugins run; whisper failed: a=b\nNRestarts=2\nResult=watchdog\n"
        "ExecMainStatus=6\nMainPID=77\nNeedDaemonReload=yes\nActiveEnterTimestamp=Tue 2026-12-01 01:00:00 UTC\n"
    )
    machine.theirs = "WAYLAND_DISPLAY=wayland-1\nHOME=/h\n"
    machine.environ |= {"WAYLAND_DISPLAY": "wayland-1", "SWAYSOCK": "/s"}
    (machine.linger / "ada").touch()
    state = machine.state()
    assert (state.enabled, state.active, state.sub, state.pid) == ("enabled", "active", "running", 77)
    assert state.text == "8 of 9 plugins run; whisper failed: a=b"
    assert (state.restarts, state.result, state.exit_code, state.reload_needed) == (2, "watchdog", 6, True)
    assert (state.variables, state.missing, state.has_display) == (["WAYLAND_DISPLAY"], ["SWAYSOCK"], True)
    assert state.linger
    advice = " ".join(command._advice(state))
    assert "import-environment SWAYSOCK" in advice
    assert "daemon-reload" in advice
    lines = "\n".join(command._lines(state))
    assert "Says      8 of 9 plugins run" in lines
    assert "Last end  watchdog, exit code 6" in lines


def test_an_older_unit_is_outdated_and_another_configuration_is_not(machine: Machine) -> None:
    machine.units.mkdir(parents=True)
    unit = machine.units / SERVICE
    program = runner_program(machine.interpreter)
    unit.write_text(service_unit(program, Path("/c/runner.toml"), "default.target"))
    assert not machine.state().outdated
    unit.write_text(service_unit(Path("/elsewhere/utter-runner")))
    assert machine.state().outdated


def test_the_login_starts_it_where_the_session_has_no_target(machine: Machine) -> None:
    machine.environ["WAYLAND_DISPLAY"] = "wayland-1"
    assert choose_target(machine.state(), machine.environ) == "default.target"
    machine.target = "active"
    assert choose_target(machine.state(), machine.environ) == "graphical-session.target"
    # Over ssh nothing can be known of the session.
    assert choose_target(ServiceState(), {}) == "graphical-session.target"


def test_without_a_manager_it_is_told_what_to_do(machine: Machine) -> None:
    machine.systemctl.answers["show"] = NO_BUS
    state = machine.state()
    assert "Failed to connect to bus" in state.problem
    assert "enable-linger" in state.problem
    assert list(command._advice(state)) == [state.problem]


def test_properties_keep_what_stands_behind_the_first_equals_sign() -> None:
    assert properties("A=1=2\nnone\nB=\n") == {"A": "1=2", "B": ""}


# ---- the real program


def test_the_real_systemctl_without_a_manager(tmp_path: Path) -> None:
    if shutil.which("systemctl") is None:
        pytest.skip("systemd is not installed")
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    assert "cannot be reached" in manager_problem(UserSystemctl(env))


def test_without_systemd_it_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "without systemd" in manager_problem(UserSystemctl({"PATH": str(tmp_path)}))


SCRIPT = """#!/bin/sh
echo "$@" >> "$HOME/calls"
case "$*" in
*"show utter-runner.service"*) echo ActiveState=active; echo "StatusText=9 of 9 plugins run";;
*show-environment*) echo DISPLAY=:0;;
esac
"""


def test_the_command_line(tmp_path: Path) -> None:
    """The real command in a process of its own; the manager is a script."""
    fake = tmp_path / "path" / "systemctl"
    fake.parent.mkdir()
    fake.write_text(SCRIPT)
    fake.chmod(0o755)
    env = {"PATH": f"{fake.parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    program = Path(sys.executable).with_name("utter-runner")
    if not program.exists():
        pytest.skip("the package is not installed with its programs")

    def utter(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-c", "from utter_runner.cli import main; raise SystemExit(main())", "service", *words]
        return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)

    done = utter("install")
    assert done.returncode == 0, done.stderr
    assert "It is active now." in done.stdout
    entry = tmp_path / ".local" / "share" / "applications" / "org.utter.Runner.desktop"
    assert f"New: {entry}" in done.stdout
    assert str(program) in entry.read_text()
    unit = tmp_path / ".config" / "systemd" / "user" / SERVICE
    assert f'ExecStart="{program}"' in unit.read_text()
    assert utter("install", "--json").returncode == 0
    done = utter("status")
    assert (done.returncode, "Says      9 of 9 plugins run" in done.stdout) == (0, True)
    unit.write_text("[Service]\n")
    done = utter("install")
    assert (done.returncode, "--replace" in done.stderr, "-[Service]" in done.stdout) == (3, True, False)
    assert "+# Written by" in done.stdout
    assert utter("install", "--config", str(tmp_path / "none")).returncode == 2
    assert utter("install", "--replace").returncode == 0
    done = utter("remove")
    assert (f"Removed {unit}" in done.stdout, f"Removed {entry}" in done.stdout) == (True, True)
    assert not entry.exists()
    assert "nothing was removed" in utter("remove").stdout
