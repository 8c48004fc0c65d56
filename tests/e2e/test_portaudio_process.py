"""The real daemon never loads PortAudio, and leaves nothing of it behind."""

from __future__ import annotations

import os
import select
import signal
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from support.daemon import Daemon, environment
from support.pipewire import missing, pipewire_bed

CONFIG = """
[audio]
source = "sounddevice"
capture = "{capture}"
cues = false
[voice]
open_ms = 8000
stall_ms = 60000
zeros_ms = 60000
[hotkeys]
enabled = false
"""

pytestmark = [
    pytest.mark.pipewire,
    pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}"),
]


def processes(daemon: int) -> list[int]:
    """The daemon's children in which PortAudio runs."""
    # The first thread alone starts them.
    children = map(int, Path(f"/proc/{daemon}/task/{daemon}/children").read_text().split())
    return [child for child in children if b"portaudio_process" in shown(child, "cmdline")]


def shown(process: int, file: str) -> bytes:
    """What /proc shows of a process; nothing if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{process}/{file}").read_bytes()
    return b""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("capture", ["always", "on-demand"])
def test_portaudio_runs_beside_the_daemon_and_ends_with_it(
    tmp_path: Path, capture: str, number: signal.Signals
) -> None:
    with pipewire_bed(tmp_path) as bed, ExitStack() as stack:
        env = {**environment(tmp_path), **bed.environment}
        daemon = Daemon(tmp_path, CONFIG.format(capture=capture), env=env, quiet=False)
        daemon.socket = Path(bed.environment["XDG_RUNTIME_DIR"]) / "utter" / "runner.sock"
        daemon.start()
        assert daemon.process is not None
        stack.callback(daemon.process.kill)
        pid = daemon.process.pid
        with daemon.client() as client:
            for _ in range(2):
                # To open it may take its time, which the library's loading does not count in.
                bed.wait(lambda: any(b"libportaudio" in shown(one, "maps") for one in processes(pid)), "it is loaded")
                assert client.call("audio.open", {}, 10)["open"] is True
                # Who records is all there is; with "on-demand" another one waits afterwards.
                (process,) = processes(pid)
                assert "libportaudio" in Path(f"/proc/{process}/maps").read_text()
                assert client.call("audio.devices", {}, 10)["inputs"]
                assert processes(pid) == [process]
                events = client.subscribe("runner.events")
                client.call("audio.close", {}, 10)
                if capture == "on-demand":
                    while events.get(30).get("state") != "closed":
                        pass
                    bed.wait(lambda before=process: processes(pid) not in ([], [before]), "another one waits")
        assert "libportaudio" not in Path(f"/proc/{pid}/maps").read_text()
        ends = [os.pidfd_open(process) for process in processes(pid)]
        assert len(ends) == 1
        for end in ends:
            stack.callback(os.close, end)
        assert daemon.stop(number) == (0 if number == signal.SIGTERM else -signal.SIGKILL)
        assert select.select(ends, [], [], 30)[0] == ends
