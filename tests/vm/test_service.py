"""The runner under a real user manager: installed, watched, restarted under load, reloaded, activated, removed."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from vm.bed.cache import LOGS
from vm.bed.guest import Guest
from vm.service import PIECES, SOCKET, UNIT, Service

QUIET = '[audio]\nsource = "none"\n'
SOCKET_UNIT = "utter-runner.socket"
# An op without a desktop; it fails at once where there is no player.
SENTENCE = "pause"
_WATCHDOG_SECONDS = 300.0
_IDLE_SECONDS = 20


@pytest.fixture(scope="module")
def installed(guest: Guest, service: Service) -> Service:
    service.put_plugin("ear")
    service.install(PIECES, extra=QUIET)
    return service


def plugin_pids(service: Service) -> set[int]:
    """The processes of the plugins that run."""
    return {one["pid"] for one in service.ready("ear", "commands", "desktop")["plugins"]}


def alive(guest: Guest, pids: set[int]) -> set[int]:
    """Those of some processes that are still there."""
    listed = guest.run("ps", "-e", "-o", "pid=", user="root").ok().out.split()
    return pids & set(map(int, listed))


def messages(service: Service) -> list[str]:
    """What the journal has of the unit: the runner's words and systemd's."""
    return [str(record.get("MESSAGE")) for record in service.journal()]


def test_it_is_active_only_once_it_can_be_used(guest: Guest, installed: Service) -> None:
    installed.systemctl("stop", UNIT).ok()
    installed.systemctl("start", "--no-block", UNIT).ok()
    states = set()

    def started() -> bool:
        states.add(installed.show("ActiveState"))
        return "active" in states

    guest.until("it is active", started)
    # Every plugin was admitted by then, and the socket accepts.
    status = json.loads(installed.utter("status", "--json").ok().out)
    assert {one["status"] for one in status["plugins"]} == {"ready"}
    assert status["service"]["manager"] is True
    assert "activating" in states
    assert installed.show("Type") == "notify"
    assert "plugin" in installed.show("StatusText")


def test_the_service_is_shown_by_its_command(installed: Service) -> None:
    shown = installed.utter("service", "status")
    assert shown.code == 0, shown
    assert "active" in shown.out


def test_the_journal_has_fields_of_plugins(installed: Service) -> None:
    installed.restart()
    old = next(one for one in installed.ready("ear")["plugins"] if one["id"] == "ear")
    installed.guest.run("kill", "-KILL", str(old["pid"])).ok()
    installed.until(
        "the plugin is back",
        lambda status: any(
            one["id"] == "ear" and one["epoch"] > old["epoch"] and one["status"] == "ready" for one in status["plugins"]
        ),
    )
    records = installed.journal("PLUGIN=ear", f"_PID={installed.main_pid()}")
    assert any(record.get("EPOCH") == str(old["epoch"]) for record in records), records
    assert all(record["_SYSTEMD_USER_UNIT"] == UNIT for record in records)
    assert any("it starts again" in record["MESSAGE"] for record in records)


def test_a_loop_that_stands_still_is_restarted(guest: Guest, installed: Service) -> None:
    before, restarts = plugin_pids(installed), int(installed.show("NRestarts"))
    old = installed.main_pid()
    assert installed.show("WatchdogUSec") not in {"0", "infinity"}
    guest.run("kill", "-STOP", str(old)).ok()
    guest.until(
        "systemd starts it anew", lambda: int(installed.show("NRestarts")) == restarts + 1, limit=_WATCHDOG_SECONDS
    )
    after = plugin_pids(installed)
    assert installed.main_pid() != old
    assert alive(guest, before | {old}) == set()
    assert not before & after
    assert any("watchdog" in line.lower() for line in messages(installed))


def test_a_restart_under_load_leaves_nothing_behind(guest: Guest, installed: Service) -> None:
    before, old, said = plugin_pids(installed), installed.main_pid(), len(messages(installed))
    events = [guest.start("utter", "events", timeout=200) for _ in range(3)]
    loop = f"while true; do utter say {SENTENCE}; done"
    commands = [guest.start("sh", "-c", loop, timeout=200) for _ in range(2)]
    installed.until("they are connected", lambda status: status["clients"] >= len(events) + 1)
    installed.systemctl("restart", UNIT).ok()
    assert installed.show("Result") == "success"
    after = plugin_pids(installed)
    for job in commands:
        job.signal(signal.SIGKILL)
        job.wait()
    # The streams ended with the runner, and said so.
    assert all(job.wait().code not in (None, 0) for job in events)
    assert alive(guest, before | {old}) == set()
    assert not before & after
    # Nothing had to be killed by systemd.
    assert not [line for line in messages(installed)[said:] if "SIGKILL" in line]


def test_a_changed_configuration_is_taken_over_by_reload(installed: Service) -> None:
    before, old = plugin_pids(installed), installed.main_pid()
    assert installed.show("CanReload") == "yes"
    installed.configure_more(PIECES.replace('[[plugin]]\nid = "ear"\n', ""), extra=QUIET)
    installed.systemctl("reload", UNIT).ok()
    status = installed.until("the plugin is gone", lambda status: len(status["plugins"]) == len(before) - 1 and status)
    assert {one["pid"] for one in status["plugins"]} < before
    assert installed.main_pid() == old
    # What is wrong is told, and what ran runs on.
    installed.configure_more(PIECES + "[nonsense]\n", extra=QUIET)
    told = installed.utter("reload")
    assert told.code != 0
    assert "nonsense" in told.out + told.err
    assert installed.show("ActiveState") == "active"
    installed.configure_more(PIECES, extra=QUIET)
    installed.systemctl("reload", UNIT).ok()
    installed.ready("ear", "commands", "desktop")
    assert installed.main_pid() == old


def test_what_it_takes_while_idle(guest: Guest, installed: Service, record_property: Any) -> None:
    pid = installed.main_pid()
    installed.ready()

    def counters() -> tuple[int, int]:
        status = guest.read(f"/proc/{pid}/status") or ""
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        return int(fields["voluntary_ctxt_switches"]), int(fields["VmRSS"].split()[0])

    before, _ = counters()
    guest.run("sleep", str(_IDLE_SECONDS)).ok()
    after, resident = counters()
    figures = {
        "wakeups_per_s": round((after - before) / _IDLE_SECONDS, 2),
        "runner_rss_mib": resident // 1024,
        "unit_memory_mib": int(installed.show("MemoryCurrent")) >> 20,
    }
    for name, value in figures.items():
        record_property(name, value)
    LOGS.mkdir(parents=True, exist_ok=True)
    (LOGS / "figures.json").write_text(json.dumps(figures) + "\n", encoding="utf-8")
    assert all(value > 0 for name, value in figures.items() if name != "wakeups_per_s")


def test_a_stop_leaves_nothing(guest: Guest, installed: Service) -> None:
    before, old = plugin_pids(installed), installed.main_pid()
    installed.systemctl("stop", UNIT).ok()
    assert alive(guest, before | {old}) == set()
    assert guest.run("test", "-e", SOCKET).code == 1
    assert (installed.show("ActiveState"), installed.show("Result")) == ("inactive", "success")


def test_whoever_connects_starts_it(guest: Guest, installed: Service) -> None:
    installed.utter("service", "install", "--target", "default.target", "--socket", timeout=300).ok()
    installed.systemctl("stop", UNIT, SOCKET_UNIT).ok()
    installed.systemctl("start", SOCKET_UNIT).ok()
    assert installed.show("ActiveState") == "inactive"
    assert guest.run("test", "-S", SOCKET).code == 0
    # Who connects waits for the start; `utter` would not wait for as long as an emulated machine takes.
    status = installed.status()
    assert status is not None
    assert status["service"]["socket_activated"] is True
    assert installed.show("ActiveState") in {"active", "activating"}
    # The socket is systemd's: it outlives the runner, which starts again for the next one.
    installed.ready("ear", "commands", "desktop")
    installed.systemctl("stop", UNIT).ok()
    assert guest.run("test", "-S", SOCKET).code == 0
    assert installed.ready("ear")["service"]["socket_activated"] is True


def test_it_is_removed_without_a_trace(guest: Guest, installed: Service) -> None:
    before = plugin_pids(installed)
    installed.utter("service", "remove", timeout=300).ok()
    assert alive(guest, before) == set()
    assert installed.show("LoadState") == "not-found"
    assert guest.run("test", "-e", SOCKET).code == 1
    # What is the user's own stays.
    assert guest.read("/home/alice/.config/utter/runner.toml")
