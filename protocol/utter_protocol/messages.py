"""JSON-RPC 2.0 messages: decoding the envelope only, and building frames around bytes that stay unparsed.

Rules here: `params`, `result` and `error` stay `msgspec.Raw`, so that a relay never parses what it forwards; what
arrives is checked for everything JSON-RPC 2.0 section 4 and PROTOCOL.md ("Messages") ask of an envelope; ids are
integers or strings, and 0 is an id. Ids count per direction: an answer that is wrong is never answered under its id.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import UNSET, Raw, UnsetType

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.methods import WireError
from utter_protocol.nesting import MAX_DEPTH, nests_too_deep

RequestId: TypeAlias = int | str

MAX_ID_LENGTH = 1024

_STRUCTURED = frozenset(b"{[")
_STREAM_ID = b'"stream_id"'
# Where the id of an item stands, as everybody writes it.
_HEAD = 512
_BOM = b"\xef\xbb\xbf"
# Ids are kept for as long as a request is in flight, so they are bounded. Python refuses to print integers of thousands
# of digits; 64 bits are more than any peer counts.
_WireId: TypeAlias = (
    Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | Annotated[str, msgspec.Meta(max_length=MAX_ID_LENGTH)]
)


class Message(msgspec.Struct):
    """One envelope. A request has `method` and `id`, a notification `method`, an answer `id` and one of the others."""

    jsonrpc: str = ""
    id: _WireId | UnsetType | None = UNSET
    method: str | UnsetType = UNSET
    params: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


class StreamItem(msgspec.Struct, gc=False):
    """The params of a stream's item; `data` stays unparsed."""

    stream_id: str
    seq: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    data: Raw


class ItemMessage(msgspec.Struct, gc=False):
    """A notification that is an item of a stream."""

    jsonrpc: str
    method: str
    params: StreamItem
    id: Raw | UnsetType = UNSET


class _Members(msgspec.Struct):
    """Which members an envelope has, whatever is in them."""

    jsonrpc: Raw | UnsetType = UNSET
    id: Raw | UnsetType = UNSET
    method: Raw | UnsetType = UNSET
    params: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


class InvalidMessage(Exception):
    """A frame that is no message. The connection lives on.

    Args:
        error: what to answer.
        request_id: the id to answer with; None is JSON null.
        answers: the request of this end that the frame was meant to answer, where that much could be read.
    """

    def __init__(self, error: RpcError, request_id: RequestId | None, answers: RequestId | None = None) -> None:
        super().__init__(error.message)
        self.error = error
        self.id = request_id
        self.answers = answers


_decode = msgspec.json.Decoder(Message).decode
_decode_item_message = msgspec.json.Decoder(ItemMessage).decode
_decode_item = msgspec.json.Decoder(StreamItem).decode
_decode_members = msgspec.json.Decoder(_Members).decode
_decode_id = msgspec.json.Decoder(_WireId).decode
_check_syntax = msgspec.json.Decoder(Raw).decode
_decode_error = msgspec.json.Decoder(WireError).decode
encode = msgspec.json.Encoder().encode

EMPTY_OBJECT = Raw(b"{}")


def decode_message(body: bytes) -> Message:
    """Return the envelope in a frame's body.

    Raises:
        InvalidMessage: -32700 for what is not UTF-8 JSON, -32600 for JSON that is not one JSON-RPC 2.0 message.
    """
    try:
        if not body.isascii():
            body.decode()
        if nests_too_deep(body):
            raise _too_deep()
        message = _decode(body)
    except msgspec.ValidationError as error:
        message = _last_of_duplicates(body, str(error))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _no_json(body, error) from None
    if message.jsonrpc != "2.0":
        raise _invalid(body, '"jsonrpc" must be "2.0"')
    if message.method is UNSET:
        if message.id is UNSET or (message.result is UNSET) == (message.error is UNSET):
            raise _invalid(body, 'neither a request ("method") nor an answer ("id" and one of "result", "error")')
    elif message.id is None:
        raise _invalid(body, '"id" of a request must not be null')
    elif message.params is not UNSET and memoryview(message.params)[0] not in _STRUCTURED:
        raise _invalid(body, '"params" must be an object or an array')
    return message


def _last_of_duplicates(body: bytes, why: str) -> Message:
    """Return the envelope if all that is wrong in it is replaced by later members of the same names."""
    try:
        _check_syntax(body)
        return _decode(encode(_decode_members(body)))
    except msgspec.MsgspecError:
        raise _invalid(body, why) from None


def decode_item_message(body: bytes) -> ItemMessage | None:
    """Return a frame's body as an item of a stream, in one pass over it; None if it is, or may be, something else."""
    if body.find(_STREAM_ID, 0, _HEAD) < 0:
        return None
    try:
        if not body.isascii():
            body.decode()
        if nests_too_deep(body):
            return None
        message = _decode_item_message(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return message if message.jsonrpc == "2.0" and message.id is UNSET else None


def decode_item(params: Raw) -> StreamItem | None:
    """Return params as those of a stream's item; None if they are not."""
    try:
        return _decode_item(params)
    except (msgspec.MsgspecError, RecursionError):
        return None


def _too_deep() -> InvalidMessage:
    error = RpcError(
        ErrorCode.PARSE_ERROR,
        f"not taken: it is nested too deep, more than max_depth ({MAX_DEPTH})",
        {"bound": "max_depth", "limit": MAX_DEPTH},
    )
    return InvalidMessage(error, None)


def _no_json(body: bytes, error: Exception) -> InvalidMessage:
    why = "it begins with a byte order mark" if body.startswith(_BOM) else str(error)
    return InvalidMessage(RpcError(ErrorCode.PARSE_ERROR, f"not JSON in UTF-8: {why}"), None)


def _invalid(body: bytes, why: str) -> InvalidMessage:
    """Return what is wrong with a body that the envelope's decoder gave up, perhaps before the end of it."""
    members = _Members()
    try:
        _check_syntax(body)
        members = _decode_members(body)
    except msgspec.ValidationError:
        if body.lstrip(b" \t\r\n").startswith(b"["):
            why = "batches are not supported"
    except msgspec.DecodeError as error:
        return _no_json(body, error)
    invalid = RpcError(ErrorCode.INVALID_REQUEST, f"not a JSON-RPC 2.0 message: {why}")
    found = _read_id(members.id)
    if members.method is UNSET and (members.result is not UNSET or members.error is not UNSET):
        return InvalidMessage(invalid, None, found)
    return InvalidMessage(invalid, found)


def _read_id(raw: Raw | UnsetType) -> RequestId | None:
    if raw is UNSET:
        return None
    try:
        return _decode_id(raw)
    except msgspec.MsgspecError:
        return None


def decode_error(raw: Raw) -> RpcError:
    """Return an answer's `error` member as an exception; one that is malformed becomes -32603 that says so."""
    try:
        if nests_too_deep(bytes(raw)):
            raise _too_deep()
        error = _decode_error(raw)
    except (msgspec.MsgspecError, InvalidMessage) as why:
        return RpcError(ErrorCode.INTERNAL_ERROR, f"the other side answered a malformed error: {why}")
    data = error.data
    decoded = RpcError(error.code, error.message, data if isinstance(data, dict) or data is None else {"data": data})
    decoded.answered = True
    return decoded


def id_bytes(request_id: RequestId) -> bytes:
    """Return an id as JSON."""
    return b"%d" % request_id if type(request_id) is int else encode(request_id)


def request_body(request_id: RequestId, method: str, params: bytes | Raw) -> bytes:
    """Return a request's body; `params` is JSON already."""
    return b'{"jsonrpc":"2.0","id":%b,"method":%b,"params":%b}' % (
        id_bytes(request_id),
        encode(method),
        params,
    )


def notification_body(method: str, params: bytes | Raw) -> bytes:
    """Return a notification's body; `params` is JSON already."""
    return b'{"jsonrpc":"2.0","method":%b,"params":%b}' % (encode(method), params)


def result_body(request_id: RequestId, result: bytes | Raw) -> bytes:
    """Return a successful answer's body; `result` is JSON already."""
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (id_bytes(request_id), result)


def error_body(request_id: RequestId | None, error: RpcError) -> bytes:
    """Return an error answer's body; a None id is JSON null (JSON-RPC 2.0 section 5).

    Raises:
        TypeError: `error.data` holds what is no JSON.
        ValueError: a string of `error` cannot be written as UTF-8.
    """
    member: dict[str, Any] = {"code": int(error.code), "message": error.message}
    if error.data is not None:
        member["data"] = error.data
    return encode({"jsonrpc": "2.0", "id": request_id, "error": member})
