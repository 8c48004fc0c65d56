"""Speech to the loudspeaker while it is still being made: a player program that reads raw audio from a pipe.

Rules here: one child process per utterance, which ends with it; writing waits while the player has enough, so that a
slow loudspeaker slows the maker down and nothing piles up here. A program of its own cannot take PortAudio down.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Protocol

import trio

from utter_protocol.errors import ErrorCode, RpcError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from utter_protocol.kinds import SpeechFormat

_SAMPLE = {"s16le": 2, "f32le": 4}
_GRACE = 5.0
_PROBE_SECONDS = 2.0


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
        self._device = device
        self._pw_play_takes_raw: bool | None = None

    async def ready(self) -> bool:
        """Whether a player is installed; see `SpeechOutput.ready`."""
        return await self._player() is not None

    @asynccontextmanager
    async def open(self, format_: SpeechFormat) -> AsyncIterator[SpeechSink]:
        """Begin an utterance; see `SpeechOutput.open`."""
        command = await self._command(format_)
        # Not a pipe: a player that complains a lot would wait for somebody to read it.
        said = os.memfd_create("utter-player", os.MFD_CLOEXEC)
        try:
            process = await trio.lowlevel.open_process(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True
            )
        except OSError as error:
            os.close(said)
            raise RpcError(ErrorCode.PLUGIN_FAILED, f"{command[0]} cannot be started: {error.strerror}") from None
        sink = _PlayerSink(process, command[0], said, _SAMPLE[format_.encoding] * format_.channels * format_.rate)
        try:
            yield sink
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
                await sink.close()

    async def _player(self) -> str | None:
        """The program that plays: the first that is there and takes raw audio from a pipe."""
        for name in ("pw-play", "paplay", "aplay"):
            if shutil.which(name) and (name != "pw-play" or await self._pw_play_is_new()):
                return name
        return None

    async def _command(self, format_: SpeechFormat) -> list[str]:
        rate, channels = str(format_.rate), str(format_.channels)
        short = format_.encoding == "s16le"
        player = await self._player()
        if player is None:
            raise RpcError(
                ErrorCode.PLUGIN_FAILED,
                "No sound can be played: neither pw-play (PipeWire 1.0), paplay nor aplay is installed.",
            )
        option = "--target" if player == "pw-play" else "--device"
        device = [f"{option}={self._device}"] if self._device else []
        if player == "pw-play":
            encoding = "s16" if short else "f32"
            return [player, "--raw", "--rate", rate, "--channels", channels, "--format", encoding, *device, "-"]
        if player == "paplay":
            encoding = "s16le" if short else "float32le"
            return [player, "--raw", f"--rate={rate}", f"--channels={channels}", f"--format={encoding}", *device]
        encoding = "S16_LE" if short else "FLOAT_LE"
        return [player, "-q", "-t", "raw", "-f", encoding, "-r", rate, "-c", channels, *device, "-"]

    async def _pw_play_is_new(self) -> bool:
        """Whether it takes raw audio, which it has since PipeWire 1.0."""
        if self._pw_play_takes_raw is None:
            said = b""
            with trio.move_on_after(_PROBE_SECONDS), suppress(OSError):
                done = await trio.run_process(
                    ["pw-play", "--help"], capture_stdout=True, stderr=subprocess.STDOUT, check=False
                )
                said = done.stdout
            self._pw_play_takes_raw = b"--raw" in said
        return self._pw_play_takes_raw


class _PlayerSink:
    """A player's standard input."""

    def __init__(self, process: trio.Process, name: str, said: int, bytes_per_second: int) -> None:
        self._process = process
        self._name = name
        self._said = said
        self._bytes_per_second = bytes_per_second
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
        await self._process.stdin.aclose()
        left = self._began + self._written / self._bytes_per_second - trio.current_time()
        with trio.move_on_after(max(left, 0.0) + _GRACE):
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
        with trio.move_on_after(_GRACE):
            await self._process.wait()
        words = " ".join(os.pread(self._said, 2000, 0).decode(errors="replace").split())[:200]
        return RpcError(ErrorCode.PLUGIN_FAILED, f"{self._name} cannot play the speech{f': {words}' if words else ''}")
