"""Keeps a loudspeaker from being taken for a microphone.

When no microphone is left, PipeWire's session manager gives whoever records the default source the monitor of a
loudspeaker, at once and without a word: what a video says would be a command.

Rules here: nothing is recorded later because of this, for the look at what is recorded goes beside the recording; the
program that waits for a change says nothing and wakes nobody until there is one. Where nobody can be asked, as with
another sound server, the source is left alone.
"""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import trio

from utter_runner.machine.pipewire import NodesUnknown
from utter_runner.voice.capture.source import SourceError
from utter_runner.voice.pipewire_nodes import read_nodes

if TYPE_CHECKING:
    from utter_runner.voice.capture.source import AudioSource, OnFrames

# A stream that is given to another device is linked anew. Who waits for another default (pw-metadata) may miss it.
# Without stdbuf the C library holds lines back until 4 KiB are full.
_CHANGES = ["stdbuf", "-oL", "pw-link", "--links", "--monitor"]
# While devices come and go, for a moment the default is one that is not there, or pw-dump fails.
_LOOKS = 20
_PAUSE = 0.1


class MicrophonesOnly:
    """A source that records PipeWire's default source, and fails instead of recording a loudspeaker.

    Args:
        source: what records.
    """

    def __init__(self, source: AudioSource) -> None:
        self._source = source
        self._gone = False

    @property
    def description(self) -> str:
        """The source's."""
        return self._source.description

    @property
    def live(self) -> bool:
        """The source's."""
        return self._source.live

    async def prepare(self) -> None:
        """See `AudioSource.prepare`."""
        await self._source.prepare()

    async def aclose(self) -> None:
        """See `AudioSource.aclose`."""
        await self._source.aclose()

    async def run(self, on_frames: OnFrames) -> None:
        """See `AudioSource.run`."""
        if self._gone:
            # After such an end it is not opened before there is a microphone.
            await self._look()
        failures: list[SourceError] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, failures, nursery.cancel_scope)
            try:
                await self._source.run(on_frames)
            except SourceError as error:
                failures.append(error)
            nursery.cancel_scope.cancel()
        raise failures[0]

    async def _watch(self, failures: list[SourceError], scope: trio.CancelScope) -> None:
        """Looks whenever links change, for as long as PipeWire is there to tell."""
        if not all(map(shutil.which, ("stdbuf", "pw-link", "pw-dump"))):
            return
        try:
            process = await trio.lowlevel.open_process(
                _CHANGES,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            return
        try:
            assert process.stdout is not None  # noqa: S101 - it was started with a pipe
            async for _ in process.stdout:
                await self._look_until_told()
                # Links come and go in groups.
                await trio.sleep(_PAUSE)
        except SourceError as error:
            failures.append(error)
            scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                process.kill()
                await process.wait()
                if process.stdout is not None:
                    await process.stdout.aclose()

    async def _look_until_told(self) -> None:
        for _ in range(_LOOKS):
            if await self._look():
                return
            await trio.sleep(_PAUSE)

    async def _look(self) -> bool:
        """Returns whether it could be told what the default source is; raises SourceError if it is a loudspeaker."""
        try:
            nodes = await read_nodes()
        except NodesUnknown:
            return False
        name, sources = nodes.default_source, {node.name for node in nodes.sources}
        self._gone = name not in sources and name in {node.name for node in nodes.sinks}
        if self._gone:
            raise SourceError(
                f"There is no microphone: PipeWire would record what the loudspeaker {name!r} plays. Plug one in, or"
                " choose one in the sound settings."
            )
        return name in sources
