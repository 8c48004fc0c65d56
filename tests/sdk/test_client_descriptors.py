"""Descriptors at a client: each with the answer that brings it, and none left when something goes wrong."""

from __future__ import annotations

import os
import socket
from base64 import b64decode
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from support.descriptors import content, memfd, no_room
from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.framing import encode_frame
from utter_sdk.client import Client, RunnerUnavailable
from utter_sdk.handles import sealed_memfd

if TYPE_CHECKING:
    from collections.abc import Callable

Runner = Any


def pass_on(runner: Runner, *contents: str, piece: int = 0, **members: Any) -> None:
    """Send a message with a descriptor for each content; the first piece of it alone, if there is one."""
    data = encode_frame(msgspec.json.encode({"jsonrpc": "2.0", **members}))
    fds = [memfd(text.encode()) for text in contents]
    cut = piece or len(data)
    socket.send_fds(runner.connection, [data[:cut]], fds)
    for fd in fds:
        os.close(fd)
    for start in range(cut, len(data)):
        runner.connection.sendall(data[start : start + 1])


def answering(*contents: str, piece: int = 0) -> Callable[[Runner], None]:
    def script(runner: Runner) -> None:
        asked = runner.expect("fd.pass")
        pass_on(runner, *contents, piece=piece, id=asked["id"], result={"size": 1})

    return script


@pytest.mark.parametrize("piece", [0, 1, 10])
def test_an_answer_brings_a_descriptor(runner: Runner, piece: int) -> None:
    runner.serve(answering("here", piece=piece))
    with Client.connect(runner.path) as client, client.fd_pass("memfd", {"size": 1}) as got:
        assert got.result == {"size": 1}
        assert content(got.detach()) == b"here"
        with pytest.raises(ValueError, match="closed or detached"):
            got.detach()


def test_the_ring_with_a_waker_brings_two(runner: Runner) -> None:
    runner.serve(answering("ring", "pipe"))
    with Client.connect(runner.path) as client:
        got = client.fd_pass("memfd.ring", {"wake": True})
        assert [content(got.detach()) for _ in range(2)] == [b"ring", b"pipe"]


@pytest.mark.parametrize("contents", [(), ("one",)])
def test_an_answer_without_what_is_due_is_an_error(runner: Runner, contents: tuple[str, ...]) -> None:
    runner.serve(answering(*contents))
    with Client.connect(runner.path) as client, pytest.raises(RpcError, match="2 descriptors were due") as error:
        client.fd_pass("memfd.ring", {"wake": True})
    assert error.value.code == ErrorCode.INTERNAL_ERROR


def test_an_error_brings_none(runner: Runner) -> None:
    def script(runner: Runner) -> None:
        asked = runner.expect("fd.pass")
        runner.send(id=asked["id"], error={"code": -32602, "message": "no such handle"})
        asked = runner.expect("fd.pass")
        pass_on(runner, "the second one's", id=asked["id"], result={})

    runner.serve(script)
    with Client.connect(runner.path) as client:
        with pytest.raises(RpcError, match="no such handle"):
            client.fd_pass("handle", {"handle": "x"})
        assert content(client.fd_pass("handle", {"handle": "y"}).detach()) == b"the second one's"


def test_an_answer_that_comes_too_late_leaves_none(runner: Runner) -> None:
    def script(runner: Runner) -> None:
        asked = runner.expect("fd.pass")
        assert runner.expect("$/cancel")["params"] == {"id": asked["id"]}
        pass_on(runner, "late", id=asked["id"], result={})
        asked = runner.expect("fd.pass")
        pass_on(runner, "in time", id=asked["id"], result={})

    runner.serve(script)
    with Client.connect(runner.path) as client:
        with pytest.raises(TimeoutError):
            client.fd_pass("memfd", {"size": 1}, timeout=0.01)
        assert content(client.fd_pass("memfd", {"size": 1}).detach()) == b"in time"


def test_what_nothing_asked_for_ends_the_connection(runner: Runner) -> None:
    def script(runner: Runner) -> None:
        asked = runner.expect("runner.status")
        pass_on(runner, "a gift", id=asked["id"], result={})

    runner.serve(script)
    with Client.connect(runner.path) as client:
        client.call("runner.status")
        with pytest.raises(RunnerUnavailable, match="a descriptor that nothing asked for"):
            client.call("runner.status")


@pytest.mark.parametrize("count", [3, 4, 100])
def test_more_than_can_come_end_the_connection(runner: Runner, count: int) -> None:
    runner.serve(answering(*map(str, range(count))))
    with Client.connect(runner.path) as client, pytest.raises(RunnerUnavailable, match="descriptors were lost"):
        client.fd_pass("memfd.ring", {"wake": True})


def test_without_room_for_it_the_connection_ends(runner: Runner) -> None:
    runner.serve(answering("lost"))
    with Client.connect(runner.path) as client:
        request = client._send_request("fd.pass", {"kind": "memfd"})
        client._wanted[request] = 1
        runner._thread.join()
        with no_room(), pytest.raises(RunnerUnavailable, match="too many files open"):
            client._result(request, "fd.pass", 5)


def test_closing_leaves_none(runner: Runner) -> None:
    def script(runner: Runner) -> None:
        first, second = (runner.expect("fd.pass")["id"] for _ in range(2))
        pass_on(runner, "first", id=first, result={})
        # The client closes while the rest of it is on its way.
        with suppress(BrokenPipeError):
            pass_on(runner, "second", piece=20, id=second, result={})

    runner.serve(script)
    client = Client.connect(runner.path)
    for request in [client._send_request("fd.pass", {"kind": "memfd"}) for _ in range(2)]:
        client._wanted[request] = 1
        client._waiting.add(request)
    client._receive()
    client._take_frames()
    client._receive()
    client.close()
    client.close()


@pytest.mark.parametrize("view", [bytes, bytearray, lambda data: memoryview(data).cast("f", [5_000, 5])])
def test_large_data_is_handed_in_and_stays_the_callers(
    view: Callable[[bytes], bytes | bytearray | memoryview], runner: Runner
) -> None:
    data = os.urandom(100_000)

    def script(runner: Runner) -> None:
        frame, fds, _, _ = socket.recv_fds(runner.connection, 65536, 2)
        assert b'"fd":true' in frame
        (fd,) = fds
        os.set_inheritable(fd, False)  # noqa: FBT003 - that is its signature
        assert content(fd) == data
        runner.send(id=1, result={"handle": "handle://x", "sha256": "x", "size": len(data)})

    runner.serve(script)
    with Client.connect(runner.path) as client:
        assert client.handles.create(view(data)).size == len(data)


def test_small_data_travels_in_the_message_whatever_its_shape(runner: Runner) -> None:
    data = bytes(range(120))

    def script(runner: Runner) -> None:
        request = runner.expect("handle.create")
        assert b64decode(request["params"]["data_b64"]) == data
        runner.send(id=request["id"], result={"handle": "handle://x", "sha256": "x", "size": len(data)})

    runner.serve(script)
    with Client.connect(runner.path) as client:
        assert client.handles.create(memoryview(data).cast("f", [10, 3])).size == len(data)


def test_a_malformed_answer_is_no_handle(runner: Runner) -> None:
    runner.serve(lambda runner: runner.send(id=runner.expect("handle.create")["id"], result={"handle": 1}))
    with Client.connect(runner.path) as client, pytest.raises(RpcError, match="a malformed answer"):
        client.handles.create(b"x")


def test_sealed_memory_is_sealed() -> None:
    fd = sealed_memfd(b"content")
    with pytest.raises(PermissionError):
        os.write(fd, b"x")
    assert content(fd) == b"content"
