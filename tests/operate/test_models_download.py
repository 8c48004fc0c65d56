"""Whatever a server does: the right file gets its name or none does, it ends, and goes on from what is there."""

from __future__ import annotations

import errno
import os
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.model_server import SERVE, ModelServer, Way
from utter_protocol.manifest import Model
from utter_protocol.models import content_path, part_path
from utter_runner.operate.errors import OperateError
from utter_runner.operate.models import download as module
from utter_runner.operate.models.download import Bounds, Download, DownloadError, client_for
from utter_runner.operate.models.store import Store

CONTENT = bytes(range(256)) * 200
BOUNDS = Bounds(first_pause=0, longest_pause=0, silence=20, reserve=0)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "models")


class Fetched:
    """What one download did."""

    def __init__(self, store: Store, model: Model, bounds: Bounds = BOUNDS) -> None:
        self.notes: list[str] = []
        self.seen: list[int] = []
        self.pauses: list[float] = []
        with client_for(bounds) as client:
            Download(
                store,
                model,
                client,
                progress=self.seen.append,
                note=self.notes.append,
                bounds=bounds,
                sleep=self.pauses.append,
            ).run()


def trusting(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)


def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *ways: Way) -> ModelServer:
    server = ModelServer(tmp_path, CONTENT, ways)
    trusting(server, monkeypatch)
    return server


def is_there(store: Store, model: Model) -> bool:
    path = content_path(store.root, model.sha256)
    assert not path.exists() or path.read_bytes() == CONTENT
    return path.exists()


def test_a_file_comes_whole_and_can_no_longer_be_changed(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path, monkeypatch) as server:
        model = server.model()
        fetched = Fetched(store, model)
        again = Fetched(store, model)
    assert is_there(store, model)
    assert content_path(store.root, model.sha256).stat().st_mode & 0o777 == 0o444
    assert not part_path(store.root, model.sha256).exists()
    assert fetched.seen[0] == 0
    assert fetched.seen[-1] == len(CONTENT)
    assert (again.seen, len(server.requests)) == ([], 1)


RIGHT = [
    ([Way("drop", 1000), Way("drop", 5000)], ["", "bytes=1000-", "bytes=6000-"]),
    ([Way("drop", 1000), Way("ignore_range")], ["", "bytes=1000-"]),
    ([Way("drop", 1000), Way("ignore_range", 400)], ["", "bytes=1000-", "bytes=400-"]),
    ([Way("drop", 1000), Way("other_range", 1)], ["", "bytes=1000-", ""]),
    ([Way("drop", 1000), Way("other_range", -1)], ["", "bytes=1000-", ""]),
    ([Way("drop", 1000), Way("no_range")], ["", "bytes=1000-", ""]),
    ([Way("drop", 1000), Way("status", 416)], ["", "bytes=1000-", ""]),
    ([Way("wrong", 1000), SERVE], ["", "bytes=1000-", ""]),
    ([Way("drop", 1000), Way("wrong")], ["", "bytes=1000-", ""]),
    ([Way("status", 500), Way("status", 503)], ["", "", ""]),
    ([Way("status", 429, "0")], ["", ""]),
    ([Way("rubbish")], ["", ""]),
    ([Way("redirect"), Way("redirect")], ["", "", ""]),
    ([Way("chunked", 0)], [""]),
]


@pytest.mark.parametrize(("ways", "asked"), RIGHT)
def test_what_goes_wrong_on_the_way_is_overcome(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch, ways: list[Way], asked: list[str]
) -> None:
    with served(tmp_path, monkeypatch, *ways) as server:
        Fetched(store, model := server.model())
    assert is_there(store, model)
    assert [one for _, one in server.requests] == asked


REFUSED = [
    (Way("long", 10), r"that has 51200 bytes, and the server has 51210\. Nothing was taken"),
    (Way("long", -10), r"that has 51200 bytes, and the server has 51190\. Nothing was taken"),
    (Way("chunked", 10), r"that has 51200 bytes, and the server sends more, 512\d\d by now"),
    (Way("endless"), r"that has 51200 bytes, and the server sends more, "),
    (Way("wrong"), r"its sha256 is [0-9a-f]{64}, and it must be [0-9a-f]{64}\. It was deleted"),
    (Way("packed"), r"sends model\.bin encoded \('gzip'\)"),
    (Way("status", 404), r"localhost:\d+/model\.bin cannot be fetched for model\.bin: the server answered 404"),
    (Way("status", 429, "86400"), r"wants to be asked again in 86400 s"),
    (Way("redirect", 0, "http://localhost/model.bin"), r"leads to http://localhost/model\.bin; only https"),
    (Way("redirect", 0, "file:///etc/passwd"), r"leads to file:///etc/passwd; only https"),
    (Way("redirect", 0, "nowhere"), r"leads to nothing; only https"),
]


@pytest.mark.parametrize(("way", "message"), REFUSED)
def test_what_no_other_attempt_would_mend_is_said_at_once(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch, way: Way, message: str
) -> None:
    with served(tmp_path, monkeypatch, way) as server:
        with pytest.raises(DownloadError, match=message) as error:
            Fetched(store, model := server.model())
        assert len(server.requests) == 1
        assert not is_there(store, model)
        # What it was right about before stays, and the next command has it.
        Fetched(store, model)
    assert is_there(store, model)
    assert error.value.kept is not (way.name in {"chunked", "endless", "wrong"})


def test_redirects_do_not_go_round_for_ever(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path, monkeypatch, *[Way("redirect")] * 20) as server:
        with pytest.raises(DownloadError, match="leads from one address to the next more than 5 times"):
            Fetched(store, server.model())
        assert len(server.requests) == 6


@pytest.mark.parametrize("way", [Way("drop", 0), Way("status", 500), Way("rubbish")])
def test_it_gives_up_and_says_how_far_it_came(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch, way: Way
) -> None:
    bounds = BOUNDS._replace(first_pause=0.5, longest_pause=3)
    with served(tmp_path, monkeypatch, Way("drop", 700), *[way] * 20) as server:
        with pytest.raises(DownloadError, match=r"\(700 of 51200 bytes are there, 6 attempts\)") as error:
            Fetched(store, model := server.model(), bounds)
        assert len(server.requests) == 6
        assert error.value.unreachable
        server.ways.clear()
        Fetched(store, model)
        assert server.requests[-1][1] == "bytes=700-"
    assert is_there(store, model)


def test_pauses_grow_up_to_their_bound(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = BOUNDS._replace(first_pause=0.5, longest_pause=3)
    ways = [*[Way("drop", 0)] * 4, Way("status", 503, "2")]
    with served(tmp_path, monkeypatch, *ways) as server:
        fetched = Fetched(store, server.model(), bounds)
    assert fetched.pauses == [0.5, 1, 2, 3, 2]


def test_attempts_that_bring_enough_do_not_count(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = BOUNDS._replace(progress=1000)
    with served(tmp_path, monkeypatch, *[Way("drop", 1000)] * 30) as server:
        Fetched(store, model := server.model(), bounds)
        assert len(server.requests) == 31
    assert is_there(store, model)


def test_what_stands_still_is_left(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = BOUNDS._replace(silence=0.3)
    with served(tmp_path, monkeypatch, Way("stall", 300)) as server:
        fetched = Fetched(store, model := server.model(), bounds)
        assert any("nothing came in time (0.3 s)" in note.lower() for note in fetched.notes)
    assert is_there(store, model)


def test_what_drips_is_left(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock on which every look takes a minute, whatever comes is too slow, until all is there."""
    ticks = iter(range(0, 10**6, 60))
    bounds = BOUNDS._replace(slowest=10**6)
    with served(tmp_path, monkeypatch) as server, client_for(bounds) as client:
        server.content = CONTENT * 20
        notes: list[str] = []
        Download(
            store,
            model := server.model(),
            client,
            note=notes.append,
            bounds=bounds._replace(progress=1),
            sleep=lambda _s: None,
            clock=lambda: float(next(ticks)),
        ).run()
        assert len(server.requests) > 1
    assert content_path(store.root, model.sha256).read_bytes() == CONTENT * 20
    assert any("Less than 1000000 bytes a second came" in note for note in notes)


def test_a_stranger_is_not_believed(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other").mkdir()
    with served(tmp_path, monkeypatch) as server:
        other = ModelServer(tmp_path / "other", b"")
        with other:
            monkeypatch.setenv("SSL_CERT_FILE", str(other.trusted))
        with pytest.raises(DownloadError, match=r"could not prove that it is that one: .*SSL_CERT_FILE"):
            Fetched(store, server.model())
        assert server.requests == []


def test_a_name_that_is_not_the_certificates_is_not_believed(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path, monkeypatch) as server:
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        with pytest.raises(DownloadError, match="could not prove"):
            Fetched(store, server.model(url=server.url.replace("localhost", "127.0.0.1")))


def test_secrets_in_an_address_are_not_shown(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path, monkeypatch, Way("status", 403)) as server:
        url = server.url.replace("//", "//ada:secret1@") + "?token=secret2"
        with pytest.raises(DownloadError) as error:
            Fetched(store, server.model(url=url))
    assert "secret" not in str(error.value)
    assert "/model.bin" in str(error.value)


def test_nobody_there(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path, monkeypatch) as server:
        model = server.model()
    with pytest.raises(DownloadError, match="the connection failed") as error:
        Fetched(store, model)
    assert error.value.unreachable


def test_a_part_that_is_longer_than_the_file_is_begun_anew(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path, monkeypatch) as server:
        model = server.model()
        part_path(store.root, model.sha256).parent.mkdir(parents=True)
        part_path(store.root, model.sha256).write_bytes(CONTENT + b"more")
        Fetched(store, model)
    assert is_there(store, model)


def test_a_part_that_is_complete_needs_no_server(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path, monkeypatch) as server:
        model = server.model()
        part_path(store.root, model.sha256).parent.mkdir(parents=True)
        part_path(store.root, model.sha256).write_bytes(CONTENT)
        Fetched(store, model)
        assert server.requests == []
    assert is_there(store, model)


def test_a_damaged_file_of_another_size_is_fetched_again(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path, monkeypatch) as server:
        model = server.model()
        path = content_path(store.root, model.sha256)
        path.parent.mkdir(parents=True)
        path.write_bytes(b"short")
        assert store.state("x", model).state == "damaged"
        Fetched(store, model)
    assert is_there(store, model)


def test_two_at_once_fetch_it_once(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path, monkeypatch, Way("hold", 300)) as server:
        model = server.model()
        threads = [threading.Thread(target=Fetched, args=(store, model, BOUNDS._replace(silence=60)))]
        threads[0].start()
        assert server.stalled.wait(30)
        waiting = threading.Event()
        done: list[bool] = []

        def second() -> None:
            with client_for(BOUNDS) as client:
                done.append(Download(store, model, client, note=lambda _text: waiting.set(), bounds=BOUNDS).run())

        threads.append(threading.Thread(target=second))
        threads[1].start()
        assert waiting.wait(30)
        server.enough.set()
        for thread in threads:
            thread.join()
        assert [asked for _, asked in server.requests] == ["", "bytes=300-"]
    assert done == [False]
    assert is_there(store, model)


def test_no_room_is_said_before_anything_is_asked(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path, monkeypatch) as server:
        with pytest.raises(
            DownloadError, match=r"There is no room for model\.bin .* 51200 bytes are to come, \d+ are free"
        ):
            Fetched(store, server.model(), BOUNDS._replace(reserve=2**62))
        assert server.requests == []


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, r"is full: \d+ of 51200 bytes of model\.bin are there\. Make room"),
        (errno.EDQUOT, "is full"),
        (errno.EIO, "cannot be written: Input/output error"),
    ],
)
def test_a_disk_that_takes_no_more(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch, number: int, message: str
) -> None:
    real = os.write

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(number, os.strerror(number))

    with served(tmp_path, monkeypatch) as server:
        monkeypatch.setattr(module.os, "write", full)
        with pytest.raises(OperateError, match=message):
            Fetched(store, model := server.model())
        monkeypatch.setattr(module.os, "write", real)
        Fetched(store, model)
    assert is_there(store, model)


def test_a_place_where_nothing_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").write_text("a file")
    with (
        served(tmp_path, monkeypatch) as server,
        pytest.raises(OperateError, match=r"models.* cannot be written: Not a directory"),
    ):
        Fetched(Store(tmp_path / "models"), server.model())


def test_what_the_environment_cannot_mean_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none"))
    with pytest.raises(OperateError, match="names certificates or a proxy that cannot be used"):
        client_for(BOUNDS)


def test_without_httpx_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(OperateError, match=r"pip install 'utter-runner\[models\]'"):
        client_for(BOUNDS)


WAYS = st.one_of(
    st.builds(Way, st.sampled_from(["drop", "wrong", "ignore_range"]), st.integers(1, 300)),
    st.builds(Way, st.just("other_range"), st.integers(-1, 2)),
    st.builds(Way, st.just("long"), st.integers(-5, 5)),
    st.builds(Way, st.just("chunked"), st.integers(0, 5)),
    st.builds(Way, st.just("status"), st.sampled_from([404, 416, 429, 500])),
    st.sampled_from([SERVE, Way("rubbish"), Way("packed"), Way("redirect"), Way("no_range"), Way("wrong")]),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ways=st.lists(WAYS, max_size=8), part=st.binary(max_size=310), data=st.data())
def test_never_a_wrong_file_and_always_an_end(
    one_server: ModelServer, tmp_path_factory: pytest.TempPathFactory, ways: list[Way], part: bytes, data: st.DataObject
) -> None:
    server, store = one_server, Store(tmp_path_factory.mktemp("store"))
    server.ways, server.requests = list(ways), []
    model = server.model()
    part_path(store.root, model.sha256).parent.mkdir()
    begun = data.draw(st.sampled_from([part, server.content[: len(part)]]))
    part_path(store.root, model.sha256).write_bytes(begun)
    first = f"bytes={len(begun)}-" if 0 < len(begun) < model.size else ""
    for _ in range(len(ways) + 3):
        try:
            Fetched(store, model)
            break
        except DownloadError:
            path = content_path(store.root, model.sha256)
            assert not path.exists()
    # As soon as the server does what it should, it is there.
    assert content_path(store.root, model.sha256).read_bytes() == server.content
    assert not server.requests or server.requests[0][1] == first
    assert len(server.requests) <= 12 * (len(ways) + 3)


@pytest.fixture
def one_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # noqa: ANN201 - a generator of a server
    with ModelServer(tmp_path, bytes(range(251)) + b"the last bytes of it") as server:
        trusting(server, monkeypatch)
        yield server
