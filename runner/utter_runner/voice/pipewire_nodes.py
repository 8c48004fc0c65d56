"""Asking PipeWire for its microphones and outputs.

Rules here: nothing is changed and nothing stays open; what `pw-dump` prints is read by `machine/pipewire.py`.
"""

from __future__ import annotations

import shutil
import subprocess

import trio

from utter_runner.machine.pipewire import Nodes, NodesUnknown, parse_nodes

PATIENCE = 5.0
"""Seconds that `pw-dump` may take. It hangs if PipeWire does; otherwise it needs some milliseconds."""


async def read_nodes() -> Nodes:
    """Ask PipeWire.

    Raises:
        NodesUnknown: `pw-dump` is not installed, or PipeWire does not run or does not answer.
    """
    if shutil.which("pw-dump") is None:
        raise NodesUnknown("pw-dump, which lists PipeWire's devices, is not installed.")
    with trio.move_on_after(PATIENCE):
        try:
            done = await trio.run_process(
                ["pw-dump"],
                stdin=subprocess.DEVNULL,
                capture_stdout=True,
                capture_stderr=True,
                check=False,
                start_new_session=True,
                deliver_cancel=_kill,
            )
        except OSError as error:
            raise NodesUnknown(f"pw-dump cannot be started: {error.strerror}.") from error
        if done.returncode != 0:
            said = " ".join(done.stderr.decode(errors="replace").split())[:200]
            raise NodesUnknown(f"PipeWire cannot be asked for its devices: {said or 'pw-dump failed'}.")
        return parse_nodes(done.stdout)
    raise NodesUnknown(f"PipeWire has not listed its devices within {PATIENCE:g} s; it may hang.")


async def _kill(process: trio.Process) -> None:
    process.kill()
