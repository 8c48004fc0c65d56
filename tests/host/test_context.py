"""The desktop's state: whose fields there are, how old they are, and when a plugin is asked again."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing
from msgspec import Raw

from support.host import fake_plugin
from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.messages import encode
from utter_runner.host.context import FRESH_SECONDS, MAX_CONTEXT_BYTES, MAX_FIELD_BYTES, MAX_FIELDS, ContextCache
from utter_runner.rpc.deadlines import Deadlines
from utter_runner.supervision.fake import FakeInstance, FakeSupervisor

if TYPE_CHECKING:
    from trio.testing import MockClock

WINDOW = {"app": "org.mozilla.firefox", "title": "Inbox"}


def source(name: str, *answers: Any) -> FakeInstance:
    """A context plugin that answers one after the other of `answers`, and the last for ever."""
    left = list(answers)

    def answer(_params: Any) -> Any:
        value = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(value, RpcError):
            raise value
        return value

    return fake_plugin(name, {"context.snapshot": answer}, provides=["context.snapshot@1"], kind="context")


async def shown(cache: ContextCache, *sources: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(encode(await cache.snapshot(list(sources))))
    return value


def announce(cache: ContextCache, plugin: FakeInstance, **fields: Any) -> None:
    cache.changed(plugin, Raw(encode({"context": fields})))


async def test_a_snapshot_has_every_field_with_its_source_and_age(autojump_clock: MockClock) -> None:
    one, two = source("one", {"window": WINDOW}), source("two", {"media": {"title": "Song"}, "workspace": 3})
    cache = ContextCache(FakeSupervisor(one, two, fake_plugin("other")))
    assert await shown(cache) == {
        "window": WINDOW,
        "media": {"title": "Song"},
        "workspace": 3,
        "meta": {
            "window": {"source": "one", "age_ms": 0, "provenance": "screen"},
            "media": {"source": "two", "age_ms": 0, "provenance": "screen"},
            "workspace": {"source": "two", "age_ms": 0, "provenance": "screen"},
        },
    }
    await trio.sleep(0.25)
    chosen = await shown(cache, "workspace", "nonsense")
    assert chosen == {
        "workspace": 3,
        "meta": {"workspace": {"source": "two", "age_ms": 250, "provenance": "screen"}},
    }
    assert [len(plugin.received) for plugin in (one, two)] == [1, 1]


async def test_the_window_in_front_is_told_by_its_id_and_else_by_all_that_is_known() -> None:
    plugin = source("eyes", {"window": WINDOW})
    cache = ContextCache(FakeSupervisor(plugin))
    assert await cache.window() == json.dumps(WINDOW, separators=(",", ":"))
    announce(cache, plugin, window={**WINDOW, "title": "Sent"})
    assert "Sent" in await cache.window()
    told = []
    for window in ({**WINDOW, "id": "7"}, {**WINDOW, "id": "7", "title": "Sent"}, {**WINDOW, "id": "8"}, "odd", None):
        announce(cache, plugin, window=window)
        told.append(await cache.window())
    assert told == ["eyes 7", "eyes 7", "eyes 8", '"odd"', ""]
    assert await ContextCache(FakeSupervisor()).window() == ""


async def test_a_plugin_that_announces_nothing_is_asked_again_and_one_that_does_is_believed(
    autojump_clock: MockClock,
) -> None:
    mute, live = source("mute", {"a": 1}, {"a": 2}), source("live", {"b": 1})
    cache = ContextCache(FakeSupervisor(mute, live))
    await cache.snapshot([])
    announce(cache, live, b=2)
    await trio.sleep(FRESH_SECONDS)
    context = await shown(cache)
    assert (context["a"], context["b"]) == (2, 2)
    assert (context["meta"]["a"]["age_ms"], context["meta"]["b"]["age_ms"]) == (0, 1000)
    assert [len(plugin.received) for plugin in (mute, live)] == [2, 1]
    # Its next epoch has announced nothing yet.
    cache.forget(live)
    live.die()
    live.start()
    await cache.snapshot([])
    assert len(live.received) == 2


async def test_an_answer_does_not_undo_what_was_announced_meanwhile() -> None:
    one = fake_plugin("one", methods=["context.snapshot"], provides=["context.snapshot@1"])
    cache = ContextCache(FakeSupervisor(one))
    cache.admitted(one)
    announce(cache, one, a="new", gone=None)
    one.answer(one.received[0], {"a": "old", "gone": "old", "b": "told only here"})
    context = await shown(cache)
    assert {name: context[name] for name in context.keys() - {"meta"}} == {"a": "new", "b": "told only here"}


async def test_fields_go_with_none_and_with_their_plugin() -> None:
    one, two = source("one", {"a": 1, "b": 2}), source("two", {"c": 3})
    cache = ContextCache(FakeSupervisor(one, two))
    await cache.snapshot([])
    announce(cache, one, a=None, unknown=None)
    assert (await shown(cache)).keys() == {"b", "c", "meta"}
    cache.forget(one)
    one.die()
    assert (await shown(cache)).keys() == {"c", "meta"}


async def test_a_field_belongs_to_who_told_it_first_and_meta_to_the_runner() -> None:
    one, two = source("one", {"a": 1}), source("two", {"z": 1})
    cache = ContextCache(FakeSupervisor(one, two))
    await cache.snapshot([])
    announce(cache, two, a="usurped", meta={"a": {"provenance": "user"}})
    context = await shown(cache)
    assert context["a"] == 1
    assert context["meta"]["a"]["provenance"] == "screen"
    cache.forget(one)
    one.die()
    announce(cache, two, a="inherited")
    assert (await shown(cache))["a"] == "inherited"


async def test_a_plugin_that_fails_or_hangs_costs_a_moment_and_not_the_rest(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    deadlines = Deadlines()
    good, bad = source("good", {"a": 1}), source("bad", RpcError(-32000, "broken"))
    odd, hangs = source("odd", [1, 2]), fake_plugin("hangs", methods=["context.snapshot"])
    hangs.deadlines = deadlines
    cache = ContextCache(FakeSupervisor(bad, odd, hangs, good))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deadlines.run)
        started = trio.current_time()
        assert (await shown(cache)).keys() == {"a", "meta"}
        assert trio.current_time() - started == pytest.approx(2.0)
        nursery.cancel_scope.cancel()
    said = "\n".join(record.message for record in caplog.records)
    assert all(name in said for name in ("bad", "odd", "hangs"))


async def test_a_plugin_is_asked_when_it_comes_up() -> None:
    one, other = source("one", {"a": 1}), fake_plugin("other")
    cache = ContextCache(FakeSupervisor(one, other))
    cache.admitted(one)
    cache.admitted(other)
    await trio.testing.wait_all_tasks_blocked()
    assert [len(plugin.received) for plugin in (one, other)] == [1, 0]
    assert (await shown(cache))["a"] == 1
    assert len(one.received) == 1


async def test_what_is_kept_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    one = source("one", {"a": 1})
    cache = ContextCache(FakeSupervisor(one))
    await cache.snapshot([])
    announce(cache, one, a=2, huge="x" * MAX_FIELD_BYTES, **{f"f{number}": number for number in range(2 * MAX_FIELDS)})
    context = await shown(cache)
    assert len(context) == MAX_FIELDS + 1
    assert "huge" not in context
    # A known field can still change.
    announce(cache, one, a=3)
    assert (await shown(cache))["a"] == 3
    assert str(MAX_FIELD_BYTES) in caplog.text


async def test_names_are_bounded_as_what_they_stand_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    one = source("one", {"a": 1})
    cache = ContextCache(FakeSupervisor(one))
    announce(cache, one, a=2, **{"n" * MAX_FIELD_BYTES: 1})
    assert (await shown(cache)).keys() == {"a", "meta"}
    assert "is not kept" in caplog.text
    for number in range(3 * MAX_FIELDS):
        announce(cache, one, **{f"gone {number}": None})
    assert sum(len(names) for names in cache._announced.values()) <= MAX_FIELDS


async def test_the_last_words_of_a_plugin_are_not_the_present() -> None:
    """What it sent before its end is still read while its process is cleared away."""
    one = fake_plugin("one", methods=["context.snapshot"], provides=["context.snapshot@1"])
    cache = ContextCache(FakeSupervisor(one))
    one.status = "starting"
    announce(cache, one, early=1)
    one.status = "ready"
    cache.admitted(one)
    assert (await shown(cache))["early"] == 1
    one.status = "backoff"
    cache.forget(one)
    one.answer(one.received[0], {"late": 1})
    announce(cache, one, later=1)
    assert (await shown(cache)).keys() == {"meta"}
    assert cache._announced == {}


async def test_all_fields_together_are_bounded_and_what_does_not_fit_is_not_shown_as_it_was() -> None:
    one = source("one", {"a": 1})
    cache = ContextCache(FakeSupervisor(one))
    await cache.snapshot([])
    large = "x" * (MAX_FIELD_BYTES - 100)
    fitting = MAX_CONTEXT_BYTES // MAX_FIELD_BYTES
    announce(cache, one, **{f"f{number}": large for number in range(fitting)})
    announce(cache, one, a=large)
    context = await shown(cache)
    assert context.keys() == {*[f"f{number}" for number in range(fitting)], "meta"}
    announce(cache, one, f0="small")
    announce(cache, one, a=large)
    assert (await shown(cache))["a"] == large


@pytest.mark.parametrize("params", [b"{}", b'{"context":[]}', b"[]"])
def test_an_announcement_of_another_shape_is_refused(params: bytes) -> None:
    cache = ContextCache(FakeSupervisor())
    with pytest.raises(RpcError) as error:
        cache.changed(fake_plugin("p"), Raw(params))
    assert error.value.code == ErrorCode.INVALID_PARAMS
