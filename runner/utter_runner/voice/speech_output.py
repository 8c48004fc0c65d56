"""Speech to the loudspeaker while it is still being made: a player program that reads raw audio from a pipe.

Rules here: one child process per utterance, which ends with it; writing waits while the player has enough, so that a
slow loudspeaker slows the maker down and nothing piles up here. Which programs there are, `players` says.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Protocol

import trio

from utter_protocol.errors import ErrorCode, RpcError
from utter_runner.voice.players import GRACE, TAIL, Players, last_words

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from utter_protocol.kinds import SpeechFormat

_SAMPLE = {"s16le": 2, "f32le": 4}


class SpeechSink(Protocol):
    """One utterance on its way to the loudspeaker."""

    async def write(self, data: bytes) -> None:
        """Play more, waiting while there is enough. Raises RpcError: -32000, the loudspeaker is gone."""

    async def drain(self) -> None:
        """Wait until everything has been heard. Raises RpcError as `write`."""


class SpeechOutput(Protocol):
    """A loudspeaker for utterances."""

    async def ready(self) -> bool:
        """Whether there is something that can play."""

    def open(self, format_: SpeechFormat) -> AbstractAsyncContextManager[SpeechSink]:
        """Begin an utterance; leaving early cuts it short. Raises RpcError: -32000, nothing can play it."""


class PlayerOutput:
    """Whichever player program is there. This is a `SpeechOutput`.

    Args:
        device: the sound server's name for the output, or nothing for the default.
    """

    def __init__(self, device: str = "") -> None:
        self._players = Players(device)

    async def ready(self) -> bool:
        """Whether a player is installed; see `SpeechOutput.ready`."""
        return await self._players.pipe_program() is not None

    @asynccontextmanager
    async def open(self, format_: SpeechFormat) -> AsyncIterator[SpeechSink]:
        """Begin an utterance; see `SpeechOutput.open`."""
        program = await self._program()
        command = await self._players.pipe_command(program, format_)
        # Not a pipe: a player that complains a lot would wait for somebody to read it.
        said = os.memfd_create("utter-player", os.MFD_CLOEXEC)
        try:
            process = await trio.lowlevel.open_process(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True
            )
        except OSError as error:
            os.close(said)
            raise RpcError(ErrorCode.PLUGIN_FAILED, f"{program} cannot be started: {error.strerror}") from None
        sink = _PlayerSink(process, program, said, _SAMPLE[format_.encoding] * format_.channels, format_.rate)
        try:
            yield sink
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
                await sink.close()

    async def _program(self) -> str:
        program = await self._players.pipe_program()
        if program is None:
            raise RpcError(
                ErrorCode.PLUGIN_FAILED,
                "No sound can be played: none of pw-play, paplay and aplay is installed and plays from a pipe.",
            )
        problem = await self._players.problem(program)
        if problem:
            raise RpcError(ErrorCode.PLUGIN_FAILED, f"No sound can be played: {program} {problem}.")
        return program


class _PlayerSink:
    """A player's standard input."""

    def __init__(self, process: trio.Process, name: str, said: int, frame: int, rate: int) -> None:
        self._process = process
        self._name = name
        self._said = said
        self._frame = frame
        self._rate = rate
        self._began = trio.current_time()
        self._written = 0

    async def write(self, data: bytes) -> None:
        """Play more; see `SpeechSink.write`."""
        assert self._process.stdin is not None  # noqa: S101 - it was asked for
        if not self._written:
            self._began = trio.current_time()
        self._written += len(data)
        try:
            await self._process.stdin.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise await self._failure() from None

    async def drain(self) -> None:
        """Wait until it has been heard; see `SpeechSink.drain`."""
        assert self._process.stdin is not None  # noqa: S101 - it was asked for
        await self.write(bytes(round(TAIL * self._rate) * self._frame))
        await self._process.stdin.aclose()
        left = self._began + self._written / self._frame / self._rate - trio.current_time()
        with trio.move_on_after(max(left, 0.0) + GRACE):
            await self._process.wait()
            if self._process.returncode:
                raise await self._failure()
            return
        raise RpcError(ErrorCode.PLUGIN_FAILED, f"{self._name} did not end when the speech was over")

    async def close(self) -> None:
        """Let go of the pipe, and of what it said."""
        os.close(self._said)
        if self._process.stdin is not None:
            await self._process.stdin.aclose()

    async def _failure(self) -> RpcError:
        # It may have closed its input before it has said why.
        with trio.move_on_after(GRACE):
            await self._process.wait()
        words = last_words(os.pread(self._said, 2000, 0))
        return RpcError(ErrorCode.PLUGIN_FAILED, f"{self._name} cannot play the speech{f': {words}' if words else ''}")
