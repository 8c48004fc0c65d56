"""The life of a plugin inside the sandbox, where it differs from one outside: who it is, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from support.supervision_tools import call, house, marked_processes
from support.transports import Way, WayName, quick
from utter_runner.supervision.sandbox.wrappers import find_sandbox

pytestmark = pytest.mark.skipif(
    "bubblewrap" not in find_sandbox(None, os.environ).wrappers,
    reason=find_sandbox(None, os.environ).without.get("bubblewrap", "-"),
)

SOCKETS: tuple[WayName, ...] = ("connect-sandboxed", "listen-sandboxed")


@pytest.mark.parametrize("name", SOCKETS)
@pytest.mark.parametrize("relay", ["child", "orphan"])
async def test_its_family_may_speak_for_it(name: WayName, relay: str, tmp_path: Path) -> None:
    way = Way(name, tmp_path)
    async with way.house(way.plugin("good", f"relay={relay}")) as running:
        assert (await call(running, "good", "works"))["method"] == "works"


async def test_a_process_outside_is_a_stranger(tmp_path: Path) -> None:
    way, gate = Way("connect-sandboxed", tmp_path), tmp_path / "gate"
    async with house(way.plugin("good", f"gate={gate}"), wait=False) as running:
        good = running.supervisor.get("good")
        await running.until(lambda: good.status == "starting" and good.epoch == 1)
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(str(tmp_path / "good.sock"))
            stranger.settimeout(20)
            assert await trio.to_thread.run_sync(stranger.recv, 1) == b""
        gate.touch()
        await running.until(lambda: good.running)
        assert (good.epoch, good.status_report()["refused_connections"]) == (1, 1)


@pytest.mark.parametrize(
    ("behaviour", "code", "patience"),
    [
        (["ignore-eof"], -signal.SIGTERM, 2.0),
        (["ignore-eof", "ignore-term"], -signal.SIGKILL, 2.0),
        # The bounds are waited for above; one that ends by itself has all the time of a busy machine.
        ([], 0, 20.0),
    ],
)
async def test_it_hears_the_end_of_its_input_and_sigterm_before_it_is_killed(
    behaviour: list[str], code: int, patience: float, tmp_path: Path
) -> None:
    way = Way("stdio-sandboxed", tmp_path)
    async with way.house(way.plugin("good", *behaviour), timing=quick(stop=patience)) as running:
        process = running.supervisor.get("good").process
        await running.supervisor.stop()
        # Whatever is killed is bwrap, and what is inside ends with it.
        assert process.returncode == code
    assert marked_processes("good") == []


async def test_how_it_ended_is_said_as_outside(tmp_path: Path) -> None:
    way = Way("stdio-sandboxed", tmp_path)
    async with way.house(way.plugin("good", restart="never"), way.plugin("other", restart="never")) as running:
        for name, method, params in (("good", "kill", {}), ("other", "exit", {"code": 3})):
            request: Any = running.supervisor.get(name).request
            request(method, json.dumps(params).encode(), lambda *_: None, timeout=10)
        await running.until(lambda: all(one.status == "failed" for one in running.supervisor.instances))
        assert "killed by SIGKILL" in running.supervisor.get("good").detail
        assert "exited with code 3" in running.supervisor.get("other").detail


async def test_a_program_that_is_not_in_its_sandbox_fails_and_says_so(tmp_path: Path) -> None:
    program = tmp_path / "elsewhere" / "program"
    program.parent.mkdir()
    program.write_text("#!/nowhere/interpreter\n")
    program.chmod(0o755)
    way = Way("stdio-sandboxed", tmp_path)
    spec = way.plugin("good", restart="never")
    async with way.house(msgspec.structs.replace(spec, argv=(str(program),))) as running:
        good = running.supervisor.get("good")
        assert good.status == "failed"
        assert "exited with code 126" in good.detail
        assert "it cannot be started in its sandbox: No such file or directory" in good.detail


SCOPE = '#!/bin/sh\nwhile [ "$1" != -- ]; do echo "$1" >>{log}; shift; done\nshift\n{then}\n'


@pytest.mark.parametrize(("then", "status"), [('exec "$@"', "ready"), ("echo no bus >&2; exit 1", "failed")])
async def test_a_scope_is_around_everything_and_without_it_nothing_runs(then: str, status: str, tmp_path: Path) -> None:
    program, log = tmp_path / "systemd-run", tmp_path / "options"
    program.write_text(SCOPE.format(log=log, then=then))
    program.chmod(0o755)
    way = Way("stdio-sandboxed", tmp_path)
    assert way.sandbox is not None
    wrappers = ("systemd-run", *way.sandbox.wrappers)
    way.sandbox = msgspec.structs.replace(way.sandbox, wrappers=wrappers, systemd_run=str(program))
    async with way.house(way.plugin("good", restart="never")) as running:
        good = running.supervisor.get("good")
        assert good.status == status, good.detail
        if status == "ready":
            assert (await call(running, "good", "works"))["method"] == "works"
        else:
            assert "its last line on stderr: no bus" in good.detail
    assert "--scope" in log.read_text().split()
