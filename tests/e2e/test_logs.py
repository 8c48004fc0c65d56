"""utter logs, against the daemon."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from support.daemon import Daemon, hostile
from utter_protocol.errors import RpcError

if TYPE_CHECKING:
    from pathlib import Path


def utter(daemon: Daemon, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "import sys; from utter_runner.cli import main; sys.exit(main())", *arguments]
    return subprocess.Popen(command, env=daemon.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)


def test_a_plugins_lines_are_told_and_followed(tmp_path: Path) -> None:
    with (
        Daemon(tmp_path, hostile("alpha")) as daemon,
        daemon.client() as client,
    ):
        found = client.call("runner.logs", {}, 10)["lines"]
        assert any(line["text"].startswith("ready on ") for line in found)
        assert [line["seq"] for line in found] == sorted(line["seq"] for line in found)
        with pytest.raises(RpcError) as caught:
            client.call("runner.logs", {"plugin": "gamma"}, 10)
        assert caught.value.code == -32005
        for wrong in ({"last": 0}, {"last": 2001}, {"level": "loud"}):
            with pytest.raises(RpcError) as caught:
                client.call("runner.logs", wrong, 10)
            assert caught.value.code == -32602
        with utter(daemon, "logs", "--json", "-n", "1") as shown:
            assert shown.stdout is not None
            (line,) = (json.loads(one) for one in shown.stdout)
            assert line["seq"] >= found[-1]["seq"]
        with utter(daemon, "logs", "-f", "-n", "1", "--json") as following:
            assert following.stdout is not None
            # It has subscribed before it prints what is there.
            seen = [json.loads(following.stdout.readline())]
            pid = next(one["pid"] for one in client.call("runner.plugins", {}, 10)["plugins"])
            os.kill(pid, signal.SIGKILL)
            while "killed by SIGKILL" not in seen[-1]["text"]:
                seen.append(json.loads(following.stdout.readline()))
            following.terminate()
        assert [one["seq"] for one in seen] == sorted({one["seq"] for one in seen})
        told = client.call("runner.logs", {"plugin": "alpha"}, 10)["lines"]
        assert told
        assert {one["plugin"] for one in told} == {"alpha"}


def test_the_runner_says_which_configuration_it_has_read(tmp_path: Path) -> None:
    with Daemon(tmp_path, "") as daemon:
        for same in (True, False):
            with utter(daemon, "config", "show", "--json", "--config", str(daemon.config)) as shown:
                assert shown.stdout is not None
                assert json.loads(shown.stdout.read())["running"] == {"path": str(daemon.config), "same": same}
            daemon.config.write_text(f"{daemon.config.read_text()}# changed\n")
