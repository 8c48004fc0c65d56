"""`utter audio record`: what the runner hears, into a WAV file.

Rules here: nothing that exists is overwritten unless that was asked for; the file is whole at every moment; what was
made for a recording that brought nothing is taken away again; what is said is said on stderr, for stdout may be the
recording.
"""

from __future__ import annotations

import os
import stat
import sys
from typing import TYPE_CHECKING, NamedTuple, Self

from utter_runner.cli.connection import UsageError
from utter_runner.cli.exits import Exit
from utter_runner.cli.guard import say
from utter_runner.cli.interrupts import ENDING, Interrupts
from utter_runner.cli.microphone import Microphone
from utter_runner.cli.text import document
from utter_runner.cli.wav_writer import WavWriter

if TYPE_CHECKING:
    from utter_runner.cli.wav_writer import Encoding
    from utter_sdk.client import Client

STDOUT = "-"
_MODE = 0o600


class Wanted(NamedTuple):
    """What is to be recorded.

    Args:
        path: the file, or `-` for standard output.
        seconds: how long; None until a signal comes.
        encoding: of the samples.
        force: an existing file is overwritten.
    """

    path: str
    seconds: float | None
    encoding: Encoding
    force: bool


class _Target:
    """The file; a context manager that removes what it has made if nothing was recorded.

    Attributes:
        fd: where the recording goes.
        written: whether anything of it is there.

    Raises:
        UsageError: it exists, or cannot be written; the sentence names it.
    """

    def __init__(self, path: str, *, force: bool) -> None:
        self.path = path
        self.is_file = path != STDOUT
        self.written = False
        self._force = force
        self._created = False

    def __enter__(self) -> Self:
        self.fd = self._open() if self.is_file else self._stdout()
        return self

    def __exit__(self, *_: object) -> None:
        if not self.is_file:
            return
        os.close(self.fd)
        if self._created and not self.written:
            os.unlink(self.path)  # noqa: PTH108 - as in the rest of the CLI

    def begin(self) -> None:
        """Make room: what was in the file is gone from here on."""
        self.written = True
        if self.is_file:
            os.ftruncate(self.fd, 0)

    @staticmethod
    def _stdout() -> int:
        if sys.stdout.isatty():
            raise UsageError("A recording is nothing for a terminal. Name a file, or send the output elsewhere.")
        return sys.stdout.fileno()

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC
        try:
            try:
                fd = os.open(self.path, flags | os.O_CREAT | os.O_EXCL, _MODE)
            except FileExistsError:
                if not self._force:
                    raise UsageError(f"{self.path} exists. Overwrite it with --force, or name another file.") from None
                fd = os.open(self.path, flags)
            else:
                self._created = True
        except OSError as error:
            raise UsageError(f"{self.path} cannot be written: {os.strerror(error.errno or 0)}.") from None
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise UsageError(f"{self.path} is no regular file. For standard output the name is -.")
        return fd


def record(client: Client, wanted: Wanted, *, as_json: bool) -> Exit:
    """Record until the time is over or a signal comes; `as_json` prints what became of it.

    Raises:
        UsageError: the file cannot be used.
        RpcError: the microphone cannot be opened.
        RunnerUnavailable: the runner went away; what was recorded up to then is in the file.
    """
    if as_json and wanted.path == STDOUT:
        raise UsageError("With --json name a file: standard output cannot be both.")
    with _Target(wanted.path, force=wanted.force) as target, Interrupts(ENDING) as interrupts:
        lost = 0
        with Microphone(client, say) as microphone:
            length = "until Ctrl-C" if wanted.seconds is None else f"for {wanted.seconds:g} s"
            say(f"Recording from {microphone.device}, {length}.")
            try:
                for piece in microphone.listen(wanted.seconds, interrupts):
                    if not target.written:
                        target.begin()
                        writer = WavWriter(target.fd, microphone.rate, wanted.encoding, seekable=target.is_file)
                    writer.write(piece.frames)
                    lost += piece.lost
            except BrokenPipeError:
                raise
            except OSError as error:
                say(f"{wanted.path} cannot be written any more: {os.strerror(error.errno or 0)}.")
                return Exit.FAILED
        told = {
            "file": wanted.path,
            "seconds": round(microphone.heard / microphone.rate, 3),
            "frames": microphone.heard,
            "rate": microphone.rate,
            "lost_s": round(lost / microphone.rate, 3),
            "late_s": round(microphone.late_s, 3),
            "faults": microphone.faults,
        }
        if as_json:
            print(document(told))
        _tell(target.path, told)
        return Exit.DONE if target.written else Exit.FAILED


def _tell(path: str, told: dict[str, object]) -> None:
    if not told["frames"]:
        say("Nothing was recorded: no audio came from the microphone. `utter audio test` says what is wrong.")
        return
    say(f"Recorded {told['seconds']:.1f} s" + ("." if path == STDOUT else f" to {path}."))
    if told["lost_s"]:
        say(f"{told['lost_s']:.1f} s are missing: they were overwritten before they could be written to {path}.")
    if told["late_s"]:
        say(f"{told['late_s']:.1f} s are missing: the microphone did not deliver them.")
