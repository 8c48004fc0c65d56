"""The shape of the OpenAI API's chat completions: what is sent, and what comes back whole or as server-sent events.

Rules here: pure. Fields that nobody here reads are not looked at, because every server has some of its own; those that
are read have the type that they should have, or the answer is refused.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

MAX_EVENT = 1024 * 1024
"""The longest event of a stream, in bytes."""
MAX_DETAIL = 300
"""How much of what a server says about an error is passed on, in characters."""
_DONE = b"[DONE]"


class ChatError(ValueError):
    """What came is no chat completion. The text says what is wrong with it."""


class Message(msgspec.Struct):
    """What the model wrote; None where it wrote nothing but, say, its thoughts."""

    content: str | None = None


class Logprobs(msgspec.Struct):
    """The log probabilities, one entry for each token."""

    content: list[Any] | None = None


class Choice(msgspec.Struct):
    """The answer. `finish_reason` is "length" when the model was cut short."""

    message: Message
    finish_reason: str | None = None
    logprobs: Logprobs | None = None


class Usage(msgspec.Struct):
    """How many tokens were written."""

    completion_tokens: int | None = None


class Completion(msgspec.Struct):
    """A whole answer."""

    choices: list[Choice]
    usage: Usage | None = None

    @property
    def text(self) -> str:
        """What the model wrote."""
        return self.choices[0].message.content or ""

    @property
    def finish(self) -> Literal["stop", "length"]:
        """Why it ends."""
        return finish_of(self.choices[0].finish_reason)

    @property
    def logprobs(self) -> list[Any] | None:
        """The entries for the tokens, if the server gave them."""
        given = self.choices[0].logprobs
        return given.content if given else None


class PieceChoice(msgspec.Struct):
    """The next words of an answer."""

    delta: Message = msgspec.field(default_factory=Message)
    finish_reason: str | None = None


class Piece(msgspec.Struct):
    """An event of a stream. The last one of some servers has no choices, only figures."""

    choices: list[PieceChoice] = []
    error: Any = None


class Model(msgspec.Struct):
    """An entry of the list of models."""

    id: str


class Models(msgspec.Struct):
    """Answer to `GET models`."""

    data: list[Model]


_completion = msgspec.json.Decoder(Completion)
_piece = msgspec.json.Decoder(Piece)
_models = msgspec.json.Decoder(Models)


def finish_of(reason: str | None) -> Literal["stop", "length"]:
    """Why an answer ends, in the protocol's words."""
    return "length" if reason == "length" else "stop"


def read_completion(body: bytes) -> Completion:
    """Read a whole answer.

    Raises:
        ChatError: it is none.
    """
    completion: Completion = _read(_completion, body)
    if not completion.choices:
        raise ChatError("the answer has no choices")
    return completion


def read_models(body: bytes) -> list[str]:
    """Read the names of the models that a server lists.

    Raises:
        ChatError: it is no list of models.
    """
    return [model.id for model in _read(_models, body).data]


def _read(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ChatError(f"it is not what the API has there: {error}") from None


class EventReader:
    """Takes a stream of server-sent events apart, however it is cut.

    Attributes:
        done: the server said that there is nothing more to come.
    """

    def __init__(self) -> None:
        self.done = False
        self._rest = b""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[Piece]:
        """Take what has arrived; return the events that are whole now.

        Raises:
            ChatError: an event is no piece of an answer, is too long, or says that the model failed.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) + self._size > MAX_EVENT:
            raise ChatError(f"an event of the stream is longer than {MAX_EVENT} bytes")
        pieces = []
        for line in lines:
            piece = self._line(line.rstrip(b"\r"))
            if piece is not None:
                pieces.append(piece)
        return pieces

    def _line(self, line: bytes) -> Piece | None:
        if line:
            name, _, value = line.partition(b":")
            if name == b"data":
                self._data.append(value.removeprefix(b" "))
                self._size += len(value)
            return None
        data, self._data, self._size = b"\n".join(self._data), [], 0
        if not data or self.done:
            return None
        if data.strip() == _DONE:
            self.done = True
            return None
        piece: Piece = _read(_piece, data)
        if piece.error is not None:
            raise ChatError(f"the server gave up: {describe_error(piece.error) or 'it does not say why'}")
        return piece


def describe_error(error: Any) -> str:
    """What a server says about an error, as one printable line; empty if it says nothing."""
    if isinstance(error, dict):
        inner = next((error[name] for name in ("error", "message", "detail") if error.get(name)), "")
        return describe_error(inner)
    if not isinstance(error, str):
        return ""
    line = " ".join("".join(character if character.isprintable() else " " for character in error).split())
    return line if len(line) <= MAX_DETAIL else line[: MAX_DETAIL - 1] + "…"
