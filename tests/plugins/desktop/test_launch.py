from __future__ import annotations

import os
import queue
import select
from pathlib import Path

import pytest

from utter_plugins.desktop.entries import Entry
from utter_plugins.desktop.failure import Failure
from utter_plugins.desktop.launch import app_argv, child_env, escape_unit, scope_prefix, start_detached

SYSTEM_PATH = "/usr/bin:/bin"


def program(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


class Staying:
    """A program that reports its pid and then runs until it is released."""

    def __init__(self, directory: Path) -> None:
        self._report, self._hold = directory / "report", directory / "hold"
        os.mkfifo(self._report)
        os.mkfifo(self._hold)
        self.path = program(directory / "stay", f'echo $$ > "{self._report}"\nread line < "{self._hold}"')

    def pid(self) -> int:
        return int(self._report.read_text())

    def release(self, pid: int) -> None:
        pidfd = os.pidfd_open(pid)
        try:
            self._hold.write_text("go\n")
            poller = select.poll()
            poller.register(pidfd, select.POLLIN)
            assert poller.poll(10_000)
        finally:
            os.close(pidfd)


@pytest.fixture
def staying(tmp_path: Path) -> Staying:
    return Staying(tmp_path)


def test_a_program_that_stays_has_a_session_and_nothing_of_ours(staying: Staying) -> None:
    env = {"PATH": SYSTEM_PATH, "KEPT": "yes", "UTTER_INSTANCE": "desktop-1"}
    assert start_detached([str(staying.path)], app="stay", env=env) is None
    pid = staying.pid()
    assert os.getsid(pid) == pid
    assert [str(Path(f"/proc/{pid}/fd/{fd}").readlink()) for fd in (0, 1, 2)] == ["/dev/null"] * 3
    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    assert b"KEPT=yes" in environment
    assert not [item for item in environment if item.startswith(b"UTTER_")]
    staying.release(pid)


@pytest.mark.parametrize(("body", "status"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", -9)])
def test_an_early_end_is_seen(tmp_path: Path, body: str, status: int) -> None:
    path = program(tmp_path / "short", body)
    assert start_detached([str(path)], app="short", env={"PATH": SYSTEM_PATH}, watch_s=30) == status


def test_a_late_end_is_told(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "hold")
    path = program(tmp_path / "late", f'read line < "{tmp_path}/hold"; exit 3')
    ended: queue.Queue[int] = queue.Queue()
    told = start_detached([str(path)], app="late", env={"PATH": SYSTEM_PATH}, watch_s=0, on_late_end=ended.put)
    assert told is None
    (tmp_path / "hold").write_text("go\n")
    assert ended.get(timeout=30) == 3


def test_what_cannot_be_executed(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"gone could not be started: No such file"):
        start_detached([str(tmp_path / "gone")], app="gone", env={"PATH": SYSTEM_PATH})
    (tmp_path / "file").write_text("")
    with pytest.raises(Failure, match=r"file could not be started: Permission denied"):
        start_detached([str(tmp_path / "file")], app="file", env={"PATH": SYSTEM_PATH})


def test_arguments_and_directory_arrive_unchanged(tmp_path: Path) -> None:
    out = tmp_path / "out"
    path = program(tmp_path / "show", f'pwd > {out}; for a in "$@"; do echo "$a" >> {out}; done')
    arguments = ["a b", "$(id)", ";", "'\""]
    folder = tmp_path / "folder"
    folder.mkdir()
    start_detached([str(path), *arguments], app="show", env={"PATH": SYSTEM_PATH}, cwd=str(folder), watch_s=30)
    assert out.read_text().splitlines() == [str(folder), *arguments]


def test_a_scope_is_used_where_a_user_manager_runs(tmp_path: Path) -> None:
    calls, runtime = tmp_path / "calls", tmp_path / "run"
    (runtime / "systemd").mkdir(parents=True)
    program(
        tmp_path / "bin/systemd-run", f'echo "$@" > {calls}\nwhile [ "$1" != -- ]; do shift; done; shift; exec "$@"'
    )
    env = {"PATH": f"{tmp_path}/bin:{SYSTEM_PATH}", "XDG_RUNTIME_DIR": str(runtime)}
    assert scope_prefix("a", env) == []
    (runtime / "systemd/private").touch()
    target = program(tmp_path / "target", "exit 7")
    assert start_detached([str(target), "x"], app="org.my-app", env=env, watch_s=30) == 7
    words = calls.read_text().split()
    assert words[:5] == ["--user", "--scope", "--quiet", "--collect", "--slice=app.slice"]
    assert words[5].startswith(r"--unit=app-utter-org.my\x2dapp-")
    assert words[5].endswith(".scope")
    assert words[6:] == ["--", str(target), "x"]


def test_no_scope_without_systemd(tmp_path: Path) -> None:
    (tmp_path / "systemd").mkdir()
    (tmp_path / "systemd/private").touch()
    assert scope_prefix("a", {"PATH": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}) == []
    assert scope_prefix("a", {"PATH": SYSTEM_PATH}) == []


def test_unit_names_are_escaped() -> None:
    assert escape_unit("org.example:A_1") == "org.example:A_1"
    assert escape_unit("my-app ü") == r"my\x2dapp\x20\xc3\xbc"


def test_the_runners_variables_stay_behind() -> None:
    assert child_env({"UTTER_INSTANCE": "x", "DISPLAY": ":0"}) == {"DISPLAY": ":0"}


def entry(*, terminal: bool) -> Entry:
    return Entry(app="a", path=Path("/a.desktop"), name="A", argv=["top", "-x"], terminal=terminal)


def test_the_terminal_around_an_application(tmp_path: Path) -> None:
    env = {"PATH": str(tmp_path), "TERMINAL": "foot --hold"}
    assert app_argv(entry(terminal=False), ["kitty"], env) == ["top", "-x"]
    assert app_argv(entry(terminal=True), ["kitty", "--"], env) == ["kitty", "--", "top", "-x"]
    with pytest.raises(Failure, match=r"needs a terminal window, and none is configured"):
        app_argv(entry(terminal=True), [], env)
    program(tmp_path / "foot", "")
    assert app_argv(entry(terminal=True), [], env) == ["foot", "--hold", "-e", "top", "-x"]
    program(tmp_path / "xdg-terminal-exec", "")
    assert app_argv(entry(terminal=True), [], env) == ["xdg-terminal-exec", "top", "-x"]
    with pytest.raises(Failure, match=r"none is configured"):
        app_argv(entry(terminal=True), [], {"PATH": str(tmp_path / "none"), "TERMINAL": "'"})
