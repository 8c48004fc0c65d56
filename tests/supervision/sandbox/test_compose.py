"""The commands that the wrappers make, and their order."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from utter_runner.supervision.sandbox.bubblewrap import NOBODY, bubblewrap_argv
from utter_runner.supervision.sandbox.compose import confined_argv
from utter_runner.supervision.sandbox.permissions import Rules
from utter_runner.supervision.sandbox.systemd_run import MAX_TASKS, scope_name, systemd_run_argv
from utter_runner.supervision.sandbox.wrappers import Sandbox

NOTHING = Rules()


def rules(**fields: Any) -> Rules:
    return Rules(**fields)


def bwrap(given: Rules, *, version: tuple[int, ...] = (0, 8, 0), root: bool = False) -> list[str]:
    return bubblewrap_argv("bwrap", version, given, ["/bin/x", "-v"], "/work", root=root)


def places(argv: list[str], *kinds: str) -> list[str]:
    """The last operand of each of these options, in their order."""
    operands = {"--tmpfs": 1, "--dir": 1}
    return [argv[at + operands.get(word, 2)] for at, word in enumerate(argv) if word in kinds]


# ---- bubblewrap


def test_the_namespaces_follow_the_permissions() -> None:
    none = bwrap(NOTHING)
    assert {"--unshare-net", "--unshare-pid", "--unshare-ipc", "--die-with-parent", "--disable-userns"} <= set(none)
    assert "--unshare-net" not in bwrap(rules(network=True))
    assert "--unshare-ipc" not in bwrap(rules(screen=True))
    # What it starts is to outlive it.
    assert not {"--unshare-pid", "--die-with-parent", "--disable-userns"} & set(bwrap(rules(spawn=True)))
    for one in (none, bwrap(rules(network=True, screen=True, spawn=True))):
        assert {"--unshare-user", "--unshare-uts"} <= set(one)
        assert one[one.index("--cap-drop") + 1] == "ALL"
        # Signals reach a plugin through its process group.
        assert "--new-session" not in one
    assert none[none.index("--") :] == ["--", "/bin/x", "-v"]
    assert none[none.index("--chdir") + 1] == "/work"


def test_an_old_bwrap_is_not_asked_for_what_it_does_not_know() -> None:
    assert "--disable-userns" not in bwrap(NOTHING, version=(0, 6, 1))


def test_root_is_nobody_inside() -> None:
    assert "--uid" not in bwrap(NOTHING)
    argv = bwrap(NOTHING, root=True)
    assert (argv[argv.index("--uid") + 1], argv[argv.index("--gid") + 1]) == (NOBODY, NOBODY)


def test_what_lies_inside_something_is_mounted_after_it() -> None:
    given = rules(
        private=("/home/me", "/run/me"),
        read=("/home/me/a/b/c", "/opt"),
        write=("/home/me/a",),
        sockets=("/run/me/bus",),
        hidden=("/home/me/a/b",),
    )
    argv = bwrap(given)
    order = places(argv, "--tmpfs", "--ro-bind-try", "--bind-try", "--ro-bind")
    assert sorted(order, key=lambda one: one.count("/")) == order
    assert set(order) == {"/home/me", "/run/me", "/home/me/a/b/c", "/opt", "/home/me/a", "/run/me/bus", "/home/me/a/b"}


def test_what_is_there_already_is_not_mounted_once_more(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    outer = str(tmp_path)
    argv = bwrap(rules(read=(outer, f"{outer}/real", f"{outer}/link")))
    assert places(argv, "--ro-bind-try") == [outer]
    # What may be changed lies in what may be read, and the other way round.
    argv = bwrap(rules(read=(outer, f"{outer}/real/x"), write=(f"{outer}/real",)))
    assert places(argv, "--ro-bind-try", "--bind-try") == [outer, f"{outer}/real", f"{outer}/real/x"]


# ---- systemd-run


def test_a_scope_has_a_name_of_its_own_and_bounds() -> None:
    assert scope_name("my-timer", "0a") == r"utter-my\x2dtimer-0a.scope"
    argv = systemd_run_argv("systemd-run", "timer", "0a", ["x", "--y"])
    assert argv[:3] == ["systemd-run", "--user", "--scope"]
    assert {"--unit=utter-timer-0a.scope", f"--property=TasksMax={MAX_TASKS}"} <= set(argv)
    assert argv[argv.index("--") :] == ["--", "x", "--y"]


# ---- all of them


def composed(*wrappers: Any, taken: tuple[int, ...] = (), **fields: Any) -> list[str]:
    sandbox = Sandbox(
        wrappers=wrappers, bwrap="/b/bwrap", bwrap_version=(0, 8), systemd_run="/s/systemd-run", landlock_abi=6
    )
    given = rules(**fields)
    return confined_argv(
        sandbox, given, ["/bin/x", "-v"], plugin="p", key="k", directory="/work", tie=["tie", "--"], taken=taken
    )


def orders(argv: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(argv[argv.index("/bin/x") - 1])
    return found


def test_the_order_of_the_wrappers() -> None:
    argv = composed("systemd-run", "bubblewrap", "landlock", "seccomp")
    order = [argv.index(word) for word in ("/s/systemd-run", "tie", "/bin/sh", "/b/bwrap", "-I", "/bin/x")]
    assert order == sorted(order)
    assert argv[-2:] == ["/bin/x", "-v"]


def test_each_wrapper_alone() -> None:
    alone = composed("landlock", write=("/w",), read=("/r",), network=True)
    assert "/b/bwrap" not in alone
    assert alone[:2] == ["tie", "--"]
    found = orders(alone)
    assert (found["seccomp"], found["streams"], found["landlock"]["network"]) == (None, None, True)
    assert "/" not in found["landlock"]["read"]
    assert "/dev" not in found["landlock"]["write"]
    assert found["drop_capabilities"] == (os.geteuid() == 0)
    assert orders(composed("seccomp", spawn=True))["seccomp"] == {"network": False, "spawn": True}
    inside = orders(composed("bubblewrap"))
    assert (inside["landlock"], inside["seccomp"], inside["drop_capabilities"]) == (None, None, False)


def test_the_streams_are_set_aside_where_nothing_is() -> None:
    assert orders(composed("bubblewrap"))["streams"] == [9, 8]
    argv = composed("bubblewrap", taken=(9, 7, 12))
    assert orders(argv)["streams"] == [8, 6]
    assert "8<&0 6>&1 </dev/null >/dev/null" in argv[argv.index("-c") + 1]


@pytest.mark.parametrize("inside", [True, False])
def test_nothing_of_the_runner_is_on_the_command_line(inside: bool) -> None:
    argv = composed(*(("bubblewrap",) if inside else ("landlock",)))
    assert not any("UTTER_INSTANCE" in word for word in argv)
