"""The audit trail of the real daemon: what it tells, and that it survives the daemon."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from support.daemon import Daemon, environment, hostile
from support.terminal import UTTER
from utter_protocol.errors import ErrorCode, RpcError

if TYPE_CHECKING:
    from pathlib import Path

ACTOR = hostile("actor", "ops=open_url,terminal,wave")
CANARY = "canary4711"


def invoke(client: Any, op: str, args: dict[str, Any], provenance: str = "user") -> Any:
    params = {"op": op, "args": args, "provenance": provenance}
    return client.call("runner.invoke", {"plugin": "actor", "method": "action.invoke", "params": params}, timeout=30)


def audit(daemon: Daemon, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*UTTER, "audit", *arguments], env=daemon.env, capture_output=True, text=True, check=False, timeout=60
    )


def entries(daemon: Daemon) -> list[dict[str, Any]]:
    return [json.loads(line) for line in audit(daemon, "--json", "--last", "1000").stdout.splitlines()]


def test_the_trail_tells_who_asked_for_what_and_what_became_of_it(tmp_path: Path) -> None:
    with Daemon(tmp_path, ACTOR) as daemon, daemon.client() as client:
        invoke(client, "open_url", {"url": f"https://{CANARY}.example/"})
        with pytest.raises(RpcError):
            invoke(client, "open_url", {"url": f"https://{CANARY}.example/"}, "screen")
        status = client.call("runner.status", {}, timeout=30)["audit"]
    path = daemon.runtime / "home" / ".local" / "state" / "utter" / "audit.jsonl"
    assert status == {"mode": "on", "path": str(path), "detail": "", "lost": 0}
    allowed, denied = entries(daemon)
    assert (allowed["op"], allowed["decision"], allowed["result"]) == ("open_url", "allow", {"status": "ok"})
    assert allowed["source"] == {"kind": "client", "pid": os.getpid(), "program": os.path.realpath(sys.executable)}
    assert (allowed["plugin"], allowed["epoch"]) == ("actor", 1)
    assert (denied["decision"], denied["tainted"]) == ("deny", ["url"])
    assert denied["result"] == {"status": "denied", "code": ErrorCode.UNTRUSTED_PROVENANCE}
    assert CANARY not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert audit(daemon, "--verify").returncode == 0


def test_the_chain_goes_on_when_the_daemon_was_killed(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, ACTOR)
    for _ in range(2):
        daemon.start()
        with daemon.client() as client:
            for _ in range(20):
                invoke(client, "wave", {})
        daemon.stop(signal.SIGKILL)
        daemon.socket.unlink()
    with daemon, daemon.client() as client:
        invoke(client, "wave", {})
    found = entries(daemon)
    assert [entry["seq"] for entry in found] == list(range(1, len(found) + 1))
    assert 1 <= len(found) <= 41
    checked = audit(daemon, "--verify", "--json")
    assert (checked.returncode, json.loads(checked.stdout)["problems"]) == (0, [])


@pytest.mark.parametrize("mode", ["on", "required"])
def test_where_it_cannot_be_written_it_warns_and_where_it_must_be_nothing_is_done(tmp_path: Path, mode: str) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    env = environment(tmp_path / "run", XDG_STATE_HOME=str(in_the_way))
    config = f'{ACTOR}\n[log]\naudit = "{mode}"\n'
    with Daemon(tmp_path, config, env=env) as daemon, daemon.client() as client:
        # It is opened beside all else that a start does.
        daemon.said("The audit trail")
        if mode == "on":
            invoke(client, "wave", {})
        else:
            with pytest.raises(RpcError) as refused:
                invoke(client, "wave", {})
            assert refused.value.data == {"op": "wave", "rule": "audit"}
            assert "cannot be written: Not a directory." in refused.value.message
        assert "Not a directory" in client.call("runner.status", {}, timeout=30)["audit"]["detail"]
    assert sum("The audit trail" in line for line in daemon.log) == 1


def test_without_a_trail_nothing_is_written(tmp_path: Path) -> None:
    with Daemon(tmp_path, ACTOR + '\n[log]\naudit = "off"\n') as daemon, daemon.client() as client:
        invoke(client, "wave", {})
        assert client.call("runner.status", {}, timeout=30)["audit"] == {"mode": "off"}
    assert not (daemon.runtime / "home" / ".local").exists()
