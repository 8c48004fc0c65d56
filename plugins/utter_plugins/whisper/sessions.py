"""The audio of the sessions that are open.

Rules here: no I/O, no model; every bound is named in the error that it leads to. Feeding is a notification, so what is
wrong with it is kept and told when the session is finished.
"""

from __future__ import annotations

import binascii
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

from utter_protocol.errors import RpcError

from .ear import invalid as _invalid

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_protocol.methods import AudioFormat, SttFeedParams, SttStartParams

    from .bias import Hints

MAX_SESSIONS = 4
MAX_SECONDS = 60
RATE = 16_000
FRAME_BYTES = 4
MAX_BYTES = MAX_SECONDS * RATE * FRAME_BYTES
# A session that was never finished, because its runner gave up on it, makes room after this time.
ABANDONED_S = 2.0 * MAX_SECONDS


@dataclass
class Session:
    """One utterance.

    Attributes:
        hints: what is likely to be said.
        language: of the speech.
        pcm: f32le mono frames at 16 kHz so far.
        gaps: notifications that did not arrive.
        truncated: more than `MAX_SECONDS` came; the rest was dropped.
        error: why the audio cannot be used.
        touched: when it was last fed, in seconds of the clock.
    """

    hints: Hints
    language: str
    pcm: bytearray = field(default_factory=bytearray)
    next_seq: int = 0
    gaps: int = 0
    truncated: bool = False
    error: RpcError | None = None
    touched: float = 0.0

    @property
    def milliseconds(self) -> int:
        """How much audio there is."""
        return len(self.pcm) * 1000 // (RATE * FRAME_BYTES)


class Sessions:
    """The open sessions, by id.

    Args:
        read: copies frames out of the audio ring; raises `RpcError`.
        forgotten: told the id of a session that was never finished and makes room.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        read: Callable[[int, int], bytes],
        forgotten: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._forgotten = forgotten
        self._clock = clock
        self._open: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._open

    def all(self) -> list[tuple[str, Session]]:
        """Those that are open now, with their ids."""
        return list(self._open.items())

    def start(self, params: SttStartParams, hints: Hints) -> Session:
        """Open a session.

        Raises:
            RpcError: -32602, the id is empty or taken, the format is another one, or too many are open.
        """
        if not params.session:
            raise _invalid("session", "it must not be empty")
        if params.session in self._open:
            raise _invalid("session", f"{params.session!r} is open already; finish or cancel it first")
        if len(self._open) >= MAX_SESSIONS:
            self._forget_abandoned()
        if len(self._open) >= MAX_SESSIONS:
            raise _invalid("session", f"at most {MAX_SESSIONS} sessions can be open; finish or cancel one first")
        _check(params.format)
        session = Session(hints, params.language.lower().partition("-")[0], touched=self._clock())
        self._open[params.session] = session
        return session

    def feed(self, params: SttFeedParams) -> Session:
        """Append audio and return the session.

        Raises:
            RpcError: -32602, no such session, or the data is no whole frames in base64, or what reading the frames
                raises; `take` raises that again.
        """
        session = self._get(params.session)
        if params.seq < session.next_seq:
            self._spoil(session, _invalid("seq", f"{params.seq} came after {session.next_seq - 1}"))
        session.touched = self._clock()
        session.gaps += params.seq - session.next_seq
        session.next_seq = params.seq + 1
        try:
            data = self._audio(params)
        except RpcError as error:
            self._spoil(session, error)
        room = MAX_BYTES - len(session.pcm)
        session.truncated = session.truncated or len(data) > room
        session.pcm += data[:room]
        return session

    def take(self, session_id: str) -> Session:
        """Close a session and return it.

        Raises:
            RpcError: -32602, no such session, or something was wrong with what was fed.
        """
        session = self._get(session_id)
        del self._open[session_id]
        if session.error is not None:
            raise session.error
        return session

    def drop(self, session_id: str) -> None:
        """Close a session and forget its audio; one that is not open is nothing to talk about."""
        self._open.pop(session_id, None)

    def _audio(self, params: SttFeedParams) -> bytes:
        if params.frames is not None:
            return self._read(params.frames.start, params.frames.count)
        try:
            data = binascii.a2b_base64(params.data_b64 or "", strict_mode=True)
        except (binascii.Error, ValueError) as error:
            raise _invalid("data_b64", f"it is not base64 ({error})") from None
        if len(data) % FRAME_BYTES:
            raise _invalid("data_b64", f"{len(data)} bytes are no whole frames of {FRAME_BYTES} bytes (f32le, mono)")
        return data

    def _forget_abandoned(self) -> None:
        before = self._clock() - ABANDONED_S
        for session_id in [key for key, session in self._open.items() if session.touched < before]:
            del self._open[session_id]
            self._forgotten(session_id)

    def _get(self, session_id: str) -> Session:
        session = self._open.get(session_id)
        if session is None:
            raise _invalid("session", f"no session {session_id!r} is open")
        return session

    @staticmethod
    def _spoil(session: Session, error: RpcError) -> NoReturn:
        session.error = session.error or error
        raise error


def _check(audio: AudioFormat) -> None:
    if audio.rate != RATE:
        raise _invalid("format.rate", f"{audio.rate} Hz is not supported; feed {RATE} Hz")
    if audio.channels != 1:
        raise _invalid("format.channels", f"{audio.channels} channels are not supported; feed mono")
