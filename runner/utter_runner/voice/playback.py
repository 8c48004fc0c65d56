"""Short sounds to the loudspeaker, through a player program.

Rules here: one child process per sound, bounded in number and in time; which programs there are, `players` says. The
sound lies in a memfd that the player opens as a file, and so may be tried again with the next program.
"""

from __future__ import annotations

import logging
import os
import subprocess
from typing import TYPE_CHECKING

import trio

from utter_runner.voice.players import GRACE, PROGRAMS, TAIL, Players, last_words
from utter_runner.voice.wavfile import float_wav

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

MAX_AT_ONCE = 4
_FRAME = 4


class Playback:
    """The loudspeaker. This is `voice.collaborators.AudioOutput`.

    Args:
        device: the sound server's name for the output, or nothing for the default.
        on_failure: told once, in a sentence, when no sound can be played; again only after one could.
    """

    def __init__(self, device: str = "", *, on_failure: Callable[[str], None] = log.warning) -> None:
        self._on_failure = on_failure
        self._players = Players(device)
        self._nursery: trio.Nursery | None = None
        self._playing = 0
        self._failed = False
        self._last_worked = ""

    def reconfigure(self, device: str) -> None:
        """Play on another output from the next sound on."""
        self._players = Players(device)
        self._last_worked, self._failed = "", False

    def play(self, pcm: bytes, rate: int) -> None:
        """Starts f32le mono audio and returns. Of more than `MAX_AT_ONCE` sounds at a time the last are dropped."""
        if self._nursery is not None and self._playing < MAX_AT_ONCE:
            self._playing += 1
            self._nursery.start_soon(self._play, pcm, rate)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Plays what `play` is given until it is cancelled, which ends what sounds."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                task_status.started()
                await trio.sleep_forever()
            finally:
                self._nursery = None

    async def _play(self, pcm: bytes, rate: int) -> None:
        fd = os.memfd_create("utter-sound", os.MFD_CLOEXEC)
        try:
            with os.fdopen(os.dup(fd), "wb") as file:
                file.write(float_wav(pcm + bytes(round(TAIL * rate) * _FRAME), rate))
            await self._with_any_player(fd, len(pcm) / _FRAME / rate)
        finally:
            self._playing -= 1
            os.close(fd)

    async def _with_any_player(self, fd: int, seconds: float) -> None:
        problems = []
        # What worked for the last sound most likely works for this one, too.
        for player in sorted(PROGRAMS, key=lambda name: name != self._last_worked):
            problem = await self._try(player, fd, seconds)
            if not problem:
                self._last_worked, self._failed = player, False
                return
            problems.append(f"{player} {problem}")
        if not self._failed:
            self._failed = True
            self._on_failure(f"No sound can be played: {'; '.join(problems)}.")

    async def _try(self, player: str, fd: int, seconds: float) -> str:
        """Plays with one program; returns what went wrong, or nothing."""
        problem = await self._players.problem(player)
        if problem:
            return problem
        with trio.move_on_after(seconds + GRACE):
            try:
                done = await trio.run_process(
                    self._players.file_command(player, f"/proc/self/fd/{fd}"),
                    pass_fds=[fd],
                    stdout=subprocess.DEVNULL,
                    capture_stderr=True,
                    check=False,
                    start_new_session=True,
                    deliver_cancel=_kill,
                )
            except OSError as error:
                return f"cannot be started ({error.strerror})"
            if done.returncode == 0:
                return ""
            said = last_words(done.stderr)
            return f"ended with exit status {done.returncode}" + (f" ({said})" if said else "")
        return f"did not end within {GRACE:g} s after the sound should have been over"


async def _kill(process: trio.Process) -> None:
    process.kill()
