"""What holds a plugin, on a machine that has all of it: Landlock, seccomp, bubblewrap and scopes of the user manager.

A plugin that tries everything runs twice: without a sandbox, where it comes through, and with one, where it does not.
"""

from __future__ import annotations

from typing import Any

import pytest

from vm.bed.guest import Guest
from vm.service import KEYBOARD, Service

ENFORCE = '[security]\nenforce = true\n[audio]\nsource = "none"\n'
SPY = '[[plugin]]\nid = "spy"\n'
WRAPPERS = ["systemd-run", "bubblewrap", "landlock", "seccomp"]
PENDING = "it has not been tried yet"


@pytest.fixture(scope="module")
def spied(guest: Guest, service: Service) -> Service:
    """The runner with the hostile plugin, a keyboard, and a file that is nobody's business."""
    guest.write(".ssh/id", "secret", mode=0o600)
    service.put_plugin("spy")
    service.install(SPY, extra=ENFORCE)
    service.plug()
    assert KEYBOARD in str(service.ready()["hotkeys"]["devices"])
    return service


def spy(service: Service) -> dict[str, str]:
    found: dict[str, str] = service.invoke("spy", "spy", {"runner": service.main_pid()})
    return found


def test_a_permission_is_said_to_be_enforced_once_it_was_tried(guest: Guest, spied: Service) -> None:
    def known() -> dict[str, Any] | None:
        answer: dict[str, Any] = spied.call("runner.validate_plugin", {"plugin": "spy"})
        return None if PENDING in str(answer["sandbox"]) else answer

    answer = guest.until("the sandbox has been tried", known)
    assert answer["sandbox"]["wrappers"] == WRAPPERS
    besides = {one["name"]: one["enforced"] for one in answer["sandbox"]["besides"]}
    # It has no file of the system's that it could lose: whoever runs it may read none, either.
    assert besides.pop("system secrets") is False
    assert {"other processes", "input devices", "the runner's socket"} <= besides.keys()
    assert all(besides.values()), answer["sandbox"]
    shown = spied.utter("plugins", "validate", "spy")
    assert shown.code == 0, shown
    assert "enforced" in shown.out


def test_a_hostile_plugin_gets_nothing(spied: Service) -> None:
    came_off = sorted(name for name, why in spy(spied).items() if not why)
    assert came_off == []


def test_it_is_in_a_bounded_scope_under_seccomp(guest: Guest, spied: Service) -> None:
    seen = spied.invoke("spy", "where", {})
    assert (seen["seccomp"], seen["privs"]) == ("2", "1")
    pid = next(one["pid"] for one in spied.ready()["plugins"] if one["id"] == "spy")
    group = (guest.read(f"/proc/{pid}/cgroup") or "").strip()
    scope = group.rsplit("/", 1)[1]
    assert scope.startswith("utter-spy-")
    assert scope.endswith(".scope")
    assert spied.show("TasksMax", scope) == "1024"
    assert spied.show("ActiveState", scope) == "active"
    # The scope goes with the plugin.
    spied.restart()
    guest.until("the scope is gone", lambda: spied.show("ActiveState", scope) == "inactive")


def test_without_a_sandbox_it_comes_through(spied: Service) -> None:
    spied.configure_more(SPY + "sandbox = false\n", extra=ENFORCE)
    spied.restart()
    held = {name: why for name, why in spy(spied).items() if why}
    assert held == {}
    shown = spied.utter("status")
    assert "No sandbox holds it" in shown.out + spied.utter("plugins", "validate", "spy").out
