"""`handle.*` and `fd.pass` over real sockets: what is answered, what is refused, and that nothing is left anywhere."""

from __future__ import annotations

import base64
import errno
import fcntl
import hashlib
import json
import mmap
import os
import select
import threading
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import trio

from support.clients import House, house
from support.descriptors import SEALS, content, memfd, no_room
from utter_protocol.blobs import MAX_INLINE, handle_of
from utter_protocol.errors import ErrorCode, RpcError
from utter_runner.config import RunnerConfig
from utter_runner.dataplane.blobfiles import BlobFiles, Bytes
from utter_runner.dataplane.ring import RingReader
from utter_runner.dataplane.service import MAX_CARRIED
from utter_runner.dataplane.wakers import MAX_WAKERS
from utter_runner.rpc.descriptors import MAX_UNREAD_FDS
from utter_runner.supervision.work import LLM, Work
from utter_sdk.client import Client

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from utter_runner.dataplane.asked import Caller

LARGE = bytes(range(256)) * 1200
ABSENT = handle_of("ab" * 32)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def info(data: bytes, provenance: str = "screen") -> dict[str, Any]:
    return {"handle": handle_of(sha256(data)), "sha256": sha256(data), "size": len(data), "provenance": provenance}


def of(made: House, plugin: str, request: Work | None = None) -> Caller:
    """A plugin that works on `request`, whatever it says."""
    return made.data.plugin(plugin, may_hear=False, purpose=lambda _request: request or Work())


async def beside(made: House, work: Callable[[Client], None]) -> None:
    """Let a blocking client do something, on a thread."""

    def connected() -> None:
        with Client.connect(str(made.endpoint.path)) as client:
            work(client)

    await trio.to_thread.run_sync(connected)


def error_of(client: Client, method: str, params: dict[str, Any], fds: tuple[int, ...] = ()) -> RpcError:
    with pytest.raises(RpcError) as error:
        client.call(method, params, 10, fds=fds)
    return error.value


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until something has happened."""
    with trio.fail_after(10):
        while not condition():
            await trio.lowlevel.checkpoint()


def below(made: House) -> set[str]:
    # Unlike pathlib, this takes no offence at what is deleted meanwhile.
    return {name for _, _, names in os.walk(made.handles) for name in names} - {"handles.lock"}


# ---- handles


@pytest.mark.parametrize("data", [b"", b"hello", "ä€".encode(), b"p" * 4096, b"q" * 4097, b"r" * MAX_INLINE], ids=len)
async def test_what_is_created_can_be_fetched(tmp_path: Path, data: bytes) -> None:
    def work(client: Client) -> None:
        assert client.call("handle.create", {"data_b64": b64(data)}) == info(data)
        assert client.call("handle.stat", {"handle": info(data)["handle"]}) == info(data)
        fetched = client.call("handle.fetch", {"handle": info(data)["handle"]})
        assert fetched == info(data) | {"data_b64": b64(data)}

    async with house(tmp_path) as made:
        await beside(made, work)


async def test_a_text_is_stored_as_utf8_and_a_size_as_zeros(tmp_path: Path) -> None:
    def work(client: Client) -> None:
        assert client.call("handle.create", {"data": "grüße"}) == info("grüße".encode())
        assert client.call("handle.create", {"data": "x" * 5000}) == info(b"x" * 5000)
        assert client.call("handle.create", {"size": 100_000}) == info(bytes(100_000))
        assert client.call("handle.create", {"size": 0}) == info(b"")

    async with house(tmp_path) as made:
        await beside(made, work)


async def test_more_than_64_kib_do_not_travel_inline(tmp_path: Path) -> None:
    def work(client: Client) -> None:
        data = b"s" * (MAX_INLINE + 1)
        made = client.call("handle.create", {"data_b64": b64(data)})
        error = error_of(client, "handle.fetch", {"handle": made["handle"]})
        assert (error.code, error.data) == (ErrorCode.TOO_LARGE_INLINE, {"bound": "max_inline", "limit": MAX_INLINE})
        # The SDK does not leave it at that.
        assert client.handles.read(made["handle"]) == data
        megabytes = os.urandom(3 << 20)
        assert client.call("handle.create", {"data_b64": b64(megabytes)}) == info(megabytes)

    async with house(tmp_path) as made:
        await beside(made, work)


async def test_the_sdk_chooses_how_data_travels(tmp_path: Path) -> None:
    def work(client: Client) -> None:
        for data in (b"small", LARGE, "text"):
            stored = client.handles.create(data)
            raw = data.encode() if isinstance(data, str) else data
            assert client.handles.read(stored.handle) == raw
            assert client.handles.stat(stored.handle) == stored
        client.handles.retain(stored.handle)
        for _ in range(2):
            client.handles.release(stored.handle)
        with pytest.raises(RpcError, match="no such handle"):
            client.handles.read(stored.handle)

    async with house(tmp_path) as made:
        await beside(made, work)


INVALID: list[tuple[str, dict[str, Any], str]] = [
    ("handle.create", {}, "data_b64"),
    ("handle.create", {"data": "x", "size": 1}, "size"),
    ("handle.create", {"data": "x", "fd": True}, "fd"),
    ("handle.create", {"data": 1}, "data"),
    ("handle.create", {"size": -1}, "size"),
    ("handle.create", {"size": 1.5}, "size"),
    ("handle.create", {"size": True}, "size"),
    ("handle.create", {"data_b64": "no base64"}, "data_b64"),
    ("handle.create", {"data_b64": "A" * 9000 + "!"}, "data_b64"),
    ("handle.create", {"data_b64": "A" * 9001}, "data_b64"),
    ("handle.create", {"data": "x" * 9000, "size": 1}, "size"),
    ("handle.create", {"data": "x", "scope": "s" * 129}, "scope"),
    ("handle.create", {"fd": True}, "fd"),
    ("handle.fetch", {}, "handle"),
    ("handle.fetch", {"handle": 1}, "handle"),
    ("handle.grant", {"handle": ABSENT}, "scope"),
    ("fd.pass", {}, "kind"),
    ("fd.pass", {"kind": "socket"}, "kind"),
    ("fd.pass", {"kind": "handle"}, "handle"),
    ("fd.pass", {"kind": "memfd"}, "size"),
    ("fd.pass", {"kind": "memfd", "meta": {"size": 1, "data": ""}}, "data"),
    ("fd.pass", {"kind": "memfd", "meta": {"data_b64": "?"}}, "data_b64"),
    ("fd.pass", {"kind": "memfd", "meta": {"data_b64": "?" * 9000}}, "data_b64"),
    ("fd.pass", {"kind": "memfd.ring", "meta": {"wake": "yes"}}, "wake"),
    ("fd.pass", {"kind": "memfd", "meta": 7}, ""),
]


async def test_invalid_params_name_the_field(tmp_path: Path) -> None:
    def work(client: Client) -> None:
        for method, params, field in INVALID:
            error = error_of(client, method, params)
            assert (error.code, (error.data or {}).get("field")) == (ErrorCode.INVALID_PARAMS, field), params

    async with house(tmp_path) as made:
        await beside(made, work)


HOSTILE_NAMES = [
    ABSENT,
    "",
    "handle://",
    "handle://../../etc/passwd",
    "handle:///etc/passwd",
    "/etc/passwd",
    "file:///etc/passwd",
    sha256(b"mine"),
    info(b"mine")["handle"].upper(),
    info(b"mine")["handle"] + "/",
    info(b"mine")["handle"] + "\n",
    info(b"mine")["handle"] + "." + "0" * 64,
    " " + info(b"mine")["handle"],
    "handle://" + "0" * 63 + "\0",
    "handle://" + "\N{ARABIC-INDIC DIGIT ZERO}" * 64,
]


async def test_whatever_is_wrong_with_a_handle_the_error_is_the_same(tmp_path: Path) -> None:
    errors = set()

    def other(client: Client) -> None:
        """Somebody else's, one of another part, and names that are none."""
        asked = [(info(b"theirs")["handle"], ""), (info(b"mine")["handle"], "part")]
        asked += [(info(b"mine")["handle"], "../part"), *((name, "") for name in HOSTILE_NAMES)]
        client.call("handle.create", {"data": "mine"})
        for name, part in asked:
            for method in ("fetch", "stat", "retain", "release"):
                error = error_of(client, f"handle.{method}", {"handle": name, "scope": part})
                errors.add((error.code, error.message, str(error.data)))
            if not part:
                error = error_of(client, "handle.grant", {"handle": name, "scope": "desktop"})
                errors.add((error.code, error.message, str(error.data)))
            error = error_of(client, "fd.pass", {"kind": "handle", "meta": {"handle": name, "scope": part}})
            errors.add((error.code, error.message, str(error.data)))

    async with house(tmp_path) as made:

        def work(client: Client) -> None:
            client.call("handle.create", {"data": "theirs"})
            client.call("handle.create", {"data": "mine", "scope": "of theirs"})
            with Client.connect(str(made.endpoint.path)) as another:
                other(another)
            assert client.call("handle.fetch", {"handle": info(b"theirs")["handle"]})["size"] == 6

        await beside(made, work)
    assert errors == {(ErrorCode.INVALID_PARAMS, "no such handle", "{'field': 'handle'}")}


async def test_parts_of_a_scope_are_apart(tmp_path: Path) -> None:
    def work(client: Client) -> None:
        names = ["", "a", "b", "../b", "/", "\0", "ü" * 128]
        for name in names:
            stored = client.call("handle.create", {"data": "same", "scope": name})
        client.call("handle.release", {"handle": stored["handle"], "scope": "a"})
        for name in names:
            if name == "a":
                assert error_of(client, "handle.stat", {"handle": stored["handle"], "scope": name}).message
            else:
                assert client.call("handle.fetch", {"handle": stored["handle"], "scope": name})["size"] == 4

    async with house(tmp_path) as made:
        await beside(made, work)


@pytest.mark.parametrize(
    ("quota", "limit", "creates"),
    [
        ("handle_scope_bytes", 65_536, [{"size": 40_000}, {"data": "x" * 30_000}]),
        ("handle_scope_bytes", 65_536, [{"size": 65_537}]),
        ("handle_scope_count", 2, [{"data": "1"}, {"data": "2"}, {"data": "3"}]),
        ("handle_total_bytes", 65_536, [{"size": 60_000}, {"data": "y" * 5_537}]),
    ],
)
async def test_quotas_name_the_bound(tmp_path: Path, quota: str, limit: int, creates: list[dict[str, Any]]) -> None:
    def work(client: Client) -> None:
        *fitting, last = creates
        stored = [client.call("handle.create", params) for params in fitting]
        error = error_of(client, "handle.create", last)
        assert (error.code, error.data) == (ErrorCode.INVALID_REQUEST, {"bound": quota, "limit": limit})
        for one in stored:
            client.call("handle.release", {"handle": one["handle"]})
        if stored:
            client.call("handle.create", last)

    async with house(tmp_path, config=RunnerConfig(**{quota: limit})) as made:
        await beside(made, work)


# ---- descriptors that are handed in


async def test_a_sealed_memfd_becomes_a_handle(tmp_path: Path) -> None:
    def work(client: Client) -> None:
        for data in (b"", b"small", LARGE):
            fd = memfd(data)
            assert client.call("handle.create", {"fd": True}, fds=[fd]) == info(data)
            os.close(fd)
            assert client.handles.read(info(data)["handle"]) == data

    async with house(tmp_path) as made:
        await beside(made, work)


async def test_what_could_still_change_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")

    def written_only() -> int:
        fd = memfd(b"x")
        try:
            return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_CLOEXEC)
        finally:
            os.close(fd)

    def end_of_pipe() -> int:
        reading, writing = os.pipe()
        os.close(writing)
        return reading

    makers: list[tuple[Callable[[], int], str]] = [
        (lambda: memfd(b"x", 0), "must be sealed"),
        (lambda: memfd(b"x", fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK), "must be sealed"),
        (lambda: memfd(b"x", SEALS & ~fcntl.F_SEAL_WRITE), "must be sealed"),
        (lambda: os.open(tmp_path / "file", os.O_RDONLY), "no memfd"),
        (lambda: os.open(tmp_path, os.O_RDONLY), "no memfd"),
        (end_of_pipe, "no memfd"),
        (written_only, "cannot be read"),
    ]

    def work(client: Client) -> None:
        for make, why in makers:
            fd = make()
            error = error_of(client, "handle.create", {"fd": True}, (fd,))
            os.close(fd)
            assert (error.code, error.data) == (ErrorCode.INVALID_PARAMS, {"field": "fd"})
            assert why in error.message
        assert client.call("handle.create", {"data": "alive"})

    async with house(tmp_path) as made:
        await beside(made, work)


async def test_only_so_many_wait_to_be_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()
    real_write = BlobFiles.write

    def write(files: BlobFiles, *arguments: Any) -> Any:
        assert go.wait(10)
        return real_write(files, *arguments)

    monkeypatch.setattr(BlobFiles, "write", write)
    outcomes: list[Any] = []

    def work(client: Client) -> None:
        fd = memfd(LARGE)
        ids = [client._send_request("handle.create", {"fd": True}, [fd]) for _ in range(MAX_UNREAD_FDS + 1)]
        os.close(fd)
        client._waiting.update(ids)
        with pytest.raises(RpcError) as error:
            client._result(ids[-1], "handle.create", 10)
        outcomes.append(error.value.data)
        go.set()
        outcomes.extend(client._result(one, "handle.create", 10)["size"] for one in ids[:-1])

    async with house(tmp_path) as made:
        await beside(made, work)
        assert made.data._handed_in == {}
    assert outcomes == [{"bound": "max_unread_fds", "limit": MAX_UNREAD_FDS}] + [len(LARGE)] * MAX_UNREAD_FDS


# ---- descriptors that are handed out


async def test_a_blobs_descriptor_is_read_only_and_nobody_elses(tmp_path: Path) -> None:
    def work(client: Client) -> None:
        stored = client.handles.create(LARGE)
        with client.fd_pass("handle", {"handle": stored.handle}) as one:
            assert one.result == {}
            (fd,) = one.fds
            assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.write(fd, b"x")
            assert os.read(fd, 10) == LARGE[:10]
            other = client.fd_pass("handle", {"handle": stored.handle})
            assert content(other.detach()) == LARGE
            # It outlives the handle.
            client.handles.release(stored.handle)
            assert os.read(fd, 10) == LARGE[10:20]

    async with house(tmp_path) as made:
        await beside(made, work)


async def test_memory_is_filled_sealed_and_handed_in(tmp_path: Path) -> None:
    def work(client: Client) -> None:
        with client.fd_pass("memfd", {"size": len(LARGE)}) as got:
            assert got.result == {"size": len(LARGE)}
            with mmap.mmap(got.fd, len(LARGE)) as memory:
                assert memory[:] == bytes(len(LARGE))
                memory[:] = LARGE
            assert error_of(client, "handle.create", {"fd": True}, (got.fd,)).data == {"field": "fd"}
            fcntl.fcntl(got.fd, fcntl.F_ADD_SEALS, SEALS)
            assert client.handles.create_from(got.fd).sha256 == sha256(LARGE)

    async with house(tmp_path) as made:
        await beside(made, work)


@pytest.mark.parametrize("meta", [{"data": "text"}, {"data_b64": b64(b"text")}, {"data": "t" * 9000}, {"data": ""}])
async def test_memory_with_content_is_sealed(tmp_path: Path, meta: dict[str, str]) -> None:
    data = meta["data"].encode() if "data" in meta else b"text"

    def work(client: Client) -> None:
        got = client.fd_pass("memfd", meta)
        assert got.result == {"size": len(data)}
        assert fcntl.fcntl(got.fd, fcntl.F_GET_SEALS) & SEALS == SEALS
        with os.fdopen(got.detach(), "rb") as file:
            assert file.read() == data

    async with house(tmp_path) as made:
        await beside(made, work)


async def test_memory_has_a_bound(tmp_path: Path) -> None:
    def work(client: Client) -> None:
        error = error_of(client, "fd.pass", {"kind": "memfd", "meta": {"size": 65_537}})
        assert (error.code, error.data) == (
            ErrorCode.INVALID_REQUEST,
            {"bound": "handle_scope_bytes", "limit": 65_536},
        )
        client.fd_pass("memfd", {"size": 65_536}).close()

    async with house(tmp_path, config=RunnerConfig(handle_scope_bytes=65_536)) as made:
        await beside(made, work)


async def test_a_peer_that_reads_nothing_gets_only_so_many(tmp_path: Path) -> None:
    def work(client: Client) -> None:
        ids = [client._send_request("fd.pass", {"kind": "memfd", "meta": {"size": 1}}) for _ in range(100)]
        client._waiting.update(ids)
        client._wanted.update(dict.fromkeys(ids, 1))
        outcomes = []
        for one in ids:
            try:
                client._result(one, "fd.pass", 10)
            except RpcError as error:
                outcomes.append((error.data or {})["bound"])
        assert set(outcomes) <= {"max_unread_fds"}
        # Whoever reads in between gets them all.
        for _ in range(100):
            client.fd_pass("memfd", {"size": 1}).close()

    async with house(tmp_path) as made:
        await beside(made, work)


async def test_without_room_for_descriptors_there_is_an_error_and_no_leak(tmp_path: Path) -> None:
    def work(client: Client) -> None:
        stored = client.handles.create(b"small")
        for meta in (
            {"kind": "handle", "meta": {"handle": stored.handle}},
            {"kind": "memfd", "meta": {"size": 1}},
            {"kind": "memfd", "meta": {"data": "x" * 9000}},
            {"kind": "memfd.ring"},
            {"kind": "memfd.ring", "meta": {"wake": True}},
        ):
            with no_room():
                error = error_of(client, "fd.pass", meta)
            assert (error.code, error.data) == (ErrorCode.PLUGIN_FAILED, {"reason": os.strerror(errno.EMFILE)}), meta
        with no_room():
            for method, params in (
                ("handle.create", {"data": "new"}),
                ("handle.create", {"size": 9000}),
                ("handle.fetch", {"handle": stored.handle}),
            ):
                error = error_of(client, method, params)
                assert error.data == {"reason": os.strerror(errno.EMFILE)}
        assert client.handles.read(stored.handle) == b"small"

    async with house(tmp_path) as made:
        await beside(made, work)
        await until(lambda: not below(made))


# ---- the ring


async def test_the_ring_is_read_and_cannot_be_written(tmp_path: Path) -> None:
    async with house(tmp_path) as made:

        def work(client: Client) -> None:
            with client.fd_pass("memfd.ring") as got:
                assert got.result == {"rate": 16_000, "channels": 1, "capacity": 16_000, "header_size": 128}
                assert len(got.fds) == 1
                for flags in (os.O_WRONLY, os.O_RDWR):
                    again = os.open(f"/proc/self/fd/{got.fd}", flags)
                    with pytest.raises(PermissionError):
                        os.write(again, b"x")
                    if flags == os.O_RDWR:
                        with pytest.raises(PermissionError):
                            mmap.mmap(again, 128, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
                    os.close(again)
                with RingReader(got.fd) as reader:
                    made.ring.write(b"\0\0\x80\x3f" * 10)
                    assert reader.read(0, 10) == b"\0\0\x80\x3f" * 10

        await beside(made, work)


async def test_a_reader_that_wants_to_be_woken_gets_a_pipe_of_its_own(tmp_path: Path) -> None:
    async with house(tmp_path) as made:

        def work(client: Client) -> None:
            first, second = (client.fd_pass("memfd.ring", {"wake": True}) for _ in range(2))
            pipe, other = first.fds[1], second.fds[1]
            # What one reader does to its end is its own business.
            os.set_blocking(pipe, False)
            with pytest.raises(BlockingIOError):
                os.read(pipe, 100)
            for _ in range(20_000):
                made.ring.write(b"\0\0\0\0")
            assert len(os.read(pipe, 1 << 20)) == 1 << 16
            assert select.select([other], [], [], 0)[0] == [other]
            first.close()
            second.close()

        await beside(made, work)
        # Who is gone is woken no more.
        await until(lambda: not len(made.data._wakers))
        assert made.ring._wakers == ()


async def test_only_so_many_readers_are_woken(tmp_path: Path) -> None:
    async with house(tmp_path) as made:

        def work(client: Client) -> None:
            readers = [client.fd_pass("memfd.ring", {"wake": True}) for _ in range(MAX_WAKERS)]
            error = error_of(client, "fd.pass", {"kind": "memfd.ring", "meta": {"wake": True}})
            assert (error.code, error.data) == (
                ErrorCode.INVALID_REQUEST,
                {"bound": "max_ring_wakers", "limit": MAX_WAKERS},
            )
            client.fd_pass("memfd.ring").close()
            for reader in readers:
                reader.close()

        await beside(made, work)


# ---- the life of a connection and of the store


async def test_what_a_connection_held_goes_with_it(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        names: set[str] = set()

        def work(client: Client) -> None:
            for data in (b"small", LARGE):
                client.handles.create(data)
                client.handles.create(data, scope="part")
            names.update(below(made))

        await beside(made, work)
        assert len(names) == 4
        await until(lambda: not below(made))
        assert made.data._clients == {}


async def test_a_connection_that_ends_while_something_is_copied_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, go = threading.Event(), threading.Event()
    real_write = BlobFiles.write

    def write(files: BlobFiles, *arguments: Any) -> Any:
        started.set()
        assert go.wait(10)
        return real_write(files, *arguments)

    monkeypatch.setattr(BlobFiles, "write", write)
    async with house(tmp_path) as made:

        def work(client: Client) -> None:
            fd = memfd(LARGE)
            client._send_request("handle.create", {"fd": True}, [fd])
            client._send_request("handle.create", {"size": 100_000})
            os.close(fd)
            assert started.wait(10)

        await beside(made, work)
        go.set()
        await until(lambda: not made.data._handed_in and not below(made))


async def test_a_cancelled_request_is_answered_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    real_write = BlobFiles.write

    def write(files: BlobFiles, *arguments: Any) -> Any:
        assert go.wait(10)
        return real_write(files, *arguments)

    monkeypatch.setattr(BlobFiles, "write", write)

    async with house(tmp_path) as made:
        client = await made.client()
        request = await client.send("handle.create", {"size": 3 << 20})
        await client.notify("$/cancel", {"id": request})
        assert (await client.call("runner.status"))["state"] == "ready"
        go.set()
        with pytest.raises(RpcError) as error:
            await client.result(request)
        assert error.value.code == ErrorCode.CANCELLED
        assert below(made) == set()


async def test_requests_wait_until_the_directory_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()
    real_open = BlobFiles.open

    def slow_open(files: BlobFiles) -> Any:
        assert go.wait(10)
        return real_open(files)

    monkeypatch.setattr(BlobFiles, "open", slow_open)
    async with house(tmp_path) as made:
        client = await made.client()
        handle = {"handle": info(b"early")["handle"]}
        create = await client.send("handle.create", {"data": "early"})
        waiting = [
            await client.send(method, params)
            for method, params in (
                ("handle.stat", {"handle": ABSENT}),
                ("handle.fetch", {"handle": ABSENT}),
                ("handle.grant", {"handle": ABSENT, "scope": "desktop"}),
                ("fd.pass", {"kind": "handle", "meta": {"handle": ABSENT}}),
            )
        ]
        assert (await client.call("runner.status"))["state"] == "ready"
        assert client.answers.keys().isdisjoint({create, *waiting})
        go.set()
        assert await client.result(create) == info(b"early")
        for request in waiting:
            with pytest.raises(RpcError, match="no such handle"):
                await client.result(request)
        assert (await client.call("handle.stat", handle))["size"] == 5


async def test_a_directory_that_cannot_be_used_costs_handles_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "handles").write_text("in the way")
    async with house(tmp_path) as made:
        client = await made.client()
        for method, params in (("handle.create", {"data": "x"}), ("handle.stat", {"handle": ABSENT})):
            error = await client.error(method, params)
            assert error.code == ErrorCode.PLUGIN_FAILED
            assert str(tmp_path / "handles") in error.message
        (told,) = made.refused
        assert told.endswith("There are no handles until the runner is started again.")

        def work(other: Client) -> None:
            other.fd_pass("memfd", {"size": 10}).close()

        await beside(made, work)


# ---- between clients and plugins


async def test_what_comes_for_a_client_that_is_gone_is_not_kept(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        store = made.data._store
        await store.wait_ready()
        stored = store.create_now(store.plugin("desktop"), "", Bytes(b"late"), "user")
        client = await made.client()
        await client.call("runner.status")
        (connection,) = made.server._connections
        await client.stream.aclose()
        await until(lambda: made.server.count == 0)
        message = msgspec.Raw(json.dumps({"picture": stored.handle}).encode())
        made.data.carry(message, "desktop", connection.peer, "user")
        assert (made.data._clients, below(made)) == ({}, {f"{stored.sha256}.user"})


async def test_a_handle_is_granted_to_a_plugin_by_its_id(tmp_path: Path) -> None:
    async with house(tmp_path) as made:

        def work(client: Client) -> None:
            stored = client.handles.create(LARGE)
            error = error_of(client, "handle.grant", {"handle": stored.handle, "scope": "nobody"})
            assert error.code == ErrorCode.CAPABILITY_MISSING
            client.handles.grant(stored.handle, "desktop")
            client.handles.grant(stored.handle, "desktop")

        await beside(made, work)
        scope = of(made, "desktop").scope
        assert [(hold.size, hold.refs, hold.granted) for hold in scope.holds.values()] == [(len(LARGE), 1, True)]
        assert of(made, "router").scope.holds == {}


async def test_handles_travel_with_what_is_passed_on(tmp_path: Path) -> None:
    """The client's with the params, the plugin's with the result; nobody's that the sender does not hold."""
    of_plugin, of_others = info(b"of the plugin"), info(b"of others")
    answer = {"picture": of_plugin["handle"], "guess": of_others["handle"], "text": f"see {of_plugin['handle']}."}
    async with house(tmp_path) as made:
        made.plugin.answers["read.screen"] = answer
        store, plugin = made.data._store, of(made, "desktop").scope
        await store.wait_ready()

        def work(client: Client) -> None:
            mine = client.handles.create(b"mine").handle
            hidden = client.handles.create(b"hidden", scope="part").handle
            with Client.connect(str(made.endpoint.path)) as other:
                other.handles.create(b"of others")
                asked = {"plugin": "desktop", "method": "read.screen", "params": {"a": [mine, hidden, ABSENT]}}
                assert client.call("runner.invoke", asked) == answer
                assert client.handles.read(of_plugin["handle"]) == b"of the plugin"
                for name in (of_others["handle"], hidden):
                    assert error_of(client, "handle.stat", {"handle": name}).message == "no such handle"

        created = msgspec.Raw(json.dumps({"data": "of the plugin"}).encode())
        made.data.request(of(made, "desktop"), _Silent(), 1, "handle.create", created)
        await beside(made, work)
        assert {hold.sha256 for hold in plugin.holds.values()} == {of_plugin["sha256"], sha256(b"mine")}


async def test_an_action_takes_handles_along_only_when_it_may_run(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        plugin = of(made, "desktop").scope

        def work(client: Client) -> None:
            mine = client.handles.create(b"mine", provenance="user").handle
            step = {"op": "mute", "args": {"level": mine}}
            asked = {"plugin": "desktop", "method": "action.invoke", "params": step | {"provenance": "screen"}}
            assert error_of(client, "runner.invoke", asked).code == ErrorCode.UNTRUSTED_PROVENANCE
            assert plugin.holds == {}
            asked["params"]["provenance"] = "user"
            client.call("runner.invoke", asked)
            assert [hold.sha256 for hold in plugin.holds.values()] == [sha256(b"mine")]

        await beside(made, work)


@pytest.mark.parametrize("data", [b"small", LARGE[:50_000]], ids=len)
async def test_what_a_plugin_stores_has_the_mark_of_what_it_works_on_and_taints_whoever_reads_it(
    tmp_path: Path, data: bytes
) -> None:
    handle = info(data)["handle"]
    created = {"data_b64": b64(data)}
    clean, seen = Work("user").below("desktop", "a"), Work("user").below("desktop", "b")
    seen.taint("context.snapshot")
    async with house(tmp_path) as made:

        async def call(work: Work, method: str, plugin: str = "desktop", **params: Any) -> dict[str, Any]:
            peer = _Silent()
            request = msgspec.Raw(json.dumps(params).encode())
            made.data.request(of(made, plugin, work), peer, 1, method, request)
            await until(lambda: bool(peer.answers))
            answer: dict[str, Any] = msgspec.to_builtins(peer.answers[0])
            return answer

        assert (await call(clean, "handle.create", **created))["provenance"] == "user"
        assert (await call(clean, "handle.fetch", handle=handle))["provenance"] == "user"
        assert clean.provenance == "user"
        assert (await call(clean, "handle.create", scope="stated", provenance="screen", **created))[
            "provenance"
        ] == "screen"
        await call(clean, "handle.grant", handle=handle, scope="router")
        assert (await call(clean, "handle.stat", "router", handle=handle))["provenance"] == "user"
        # Of what is done for a work that is the screen's, which blob was chosen says something, too.
        await call(seen, "handle.grant", handle=handle, scope="router")
        assert (await call(seen, "handle.stat", "router", handle=handle))["provenance"] == "screen"
        assert (await call(clean, "handle.stat", handle=handle))["provenance"] == "user"
        # Making it again takes nothing back, in whatever order.
        for work in (seen, clean):
            assert (await call(work, "handle.create", **created))["provenance"] == "screen"
        reader = Work("user")
        await call(reader.below("desktop", "c"), "handle.stat", handle=handle)
        assert reader.provenance == "user"
        await call(reader.below("desktop", "c"), "handle.fetch", handle=handle)
        assert (reader.provenance, reader.sources) == ("screen", ("handle",))


async def test_what_a_language_model_had_a_part_in_is_remembered_apart(tmp_path: Path) -> None:
    data = info(b"said")
    model, reader = Work("user"), Work("user")
    model.taint(LLM)
    async with house(tmp_path) as made:
        store = made.data._store
        await store.wait_ready()
        created = msgspec.Raw(json.dumps({"data": "said"}).encode())
        made.data.request(of(made, "desktop", model), _Silent(), 1, "handle.create", created)
        message = msgspec.Raw(json.dumps({"handle": data["handle"]}).encode())
        assert made.data.mark_in(message, "desktop") == "llm"
        assert made.data.carry(message, "desktop", "router", "user") == "llm"
        made.data.request(of(made, "router", reader), _Silent(), 1, "handle.fetch", message)
        assert (reader.provenance, reader.mark) == ("user", "llm")
        assert made.data.carry(message, "desktop", "router", "screen") == "screen"
        assert made.data.mark_in(message, "nobody") == "user"


async def test_however_many_handles_a_message_names_all_of_them_count(tmp_path: Path) -> None:
    async with house(tmp_path) as made:
        store = made.data._store
        await store.wait_ready()
        stored = store.create_now(store.plugin("desktop"), "part", Bytes(b"last"), "screen")
        names = [handle_of(f"{number:064x}") for number in range(2 * MAX_CARRIED)]
        message = json.dumps([*names, stored.handle]).encode()
        assert made.data.mark_in(message, "desktop") == "screen"


async def test_a_mark_that_cannot_be_lowered_on_disk_costs_the_blob(tmp_path: Path, monkeypatch: Any) -> None:
    async with house(tmp_path) as made:
        store = made.data._store
        await store.wait_ready()
        scope = store.plugin("desktop")
        stored = store.create_now(scope, "", Bytes(b"kept"), "user")

        def fails(_path: object, _other: object) -> None:
            raise OSError(errno.EROFS, "Read-only file system")

        monkeypatch.setattr(store._files, "rename", fails)
        with pytest.raises(RpcError) as error:
            store.create_now(scope, "", Bytes(b"kept"), "screen")
        assert error.value.code == ErrorCode.PLUGIN_FAILED
        assert (scope.holds, below(made)) == ({}, set())
        with pytest.raises(RpcError, match="no such handle"):
            store.find(scope, "", stored.handle)


async def test_a_mark_may_go_down_while_a_thread_opens_the_file(tmp_path: Path, monkeypatch: Any) -> None:
    """Of all that may happen between the two the worst: its name changes twice after the thread has looked."""
    async with house(tmp_path) as made:
        store = made.data._store
        await store.wait_ready()
        hold = store.find(scope := store.plugin("desktop"), "", store.create_now(scope, "", Bytes(b"x"), "user").handle)
        real = os.open

        def late(path: Any, *rest: Any) -> int:
            monkeypatch.setattr(os, "open", real)
            for mark in ("llm", "screen"):
                store._lower(hold, mark)
            return real(path, *rest)

        monkeypatch.setattr(os, "open", late)
        assert store.read_now(hold) == b"x"
        assert hold.mark == "screen"


class _Silent:
    """A peer that takes an answer and has nothing to say of it."""

    descriptors_waiting = False
    closed = False

    def __init__(self) -> None:
        self.answers: list[object] = []

    def on_cancel(self, _request_id: int, _cancel: object) -> None:
        """Nobody cancels."""

    def reply_object(self, _request_id: int, result: object) -> None:
        """Take it."""
        self.answers.append(result)


async def test_what_a_plugin_held_outlives_the_runner_and_is_checked_before_it_is_used(tmp_path: Path) -> None:
    good, changed, longer = b"good" * 2000, b"bad!" * 2000, b"longer"
    async with house(tmp_path) as made:

        def work(client: Client) -> None:
            for data in (good, changed, longer):
                client.handles.grant(client.handles.create(data).handle, "desktop")

        await beside(made, work)
        (directory,) = (made.handles / "plugins").iterdir()
    assert {path.name for path in directory.iterdir()} == {sha256(data) for data in (good, changed, longer)}
    (directory / sha256(changed)).write_bytes(b"evil" * 2000)
    async with house(tmp_path) as made:
        store, scope = made.data._store, of(made, "desktop").scope
        await store.wait_ready()
        assert len(scope.holds) == 3
        with (directory / sha256(longer)).open("ab") as file:
            file.write(b"!")
        for data in (changed, longer):
            hold = store.find(scope, "", handle_of(sha256(data)))
            for use in (store.open, store.read):
                with pytest.raises(RpcError, match="no such handle"):
                    await use(hold)
            with pytest.raises(RpcError, match="no such handle"):
                store.find(scope, "", handle_of(sha256(data)))
        fd = await store.open(store.find(scope, "", handle_of(sha256(good))))
        assert content(fd) == good
