"""Holding through a plugin: which one is asked, and what is said when it does not do it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from support.host import fake_plugin
from utter_protocol.errors import ErrorCode, RpcError
from utter_runner.rpc.deadlines import Deadlines
from utter_runner.supervision.fake import FakeInstance, FakeSupervisor
from utter_runner.voice.media import CALL_SECONDS, PluginMedia

if TYPE_CHECKING:
    from trio.testing import MockClock

HELD = {"media.hold": {"held": ["Spotify", "VLC"]}, "media.release": {"resumed": ["Spotify"]}}


def holder(**answers: object) -> FakeInstance:
    return fake_plugin("desktop", {**HELD, **answers}, provides=["media.hold@1"])


def media(*plugins: FakeInstance) -> tuple[PluginMedia, list[str]]:
    warnings: list[str] = []
    return PluginMedia(FakeSupervisor(*plugins), warn=warnings.append), warnings  # type: ignore[arg-type]


def methods(plugin: FakeInstance) -> list[tuple[str, str]]:
    return [(request.method, request.params["session"]) for request in plugin.received]


async def test_the_provider_is_asked_to_hold_and_to_release() -> None:
    plugin = holder()
    made, warnings = media(fake_plugin("other"), plugin)
    await made.hold("s1")
    await made.release("s1")
    assert methods(plugin) == [("media.hold", "s1"), ("media.release", "s1")]
    assert {request.timeout for request in plugin.received} == {CALL_SECONDS}
    assert warnings == []


async def test_without_a_provider_nothing_happens() -> None:
    stopped = holder()
    stopped.die()
    for plugins in ((), (fake_plugin("other"),), (stopped,)):
        made, warnings = media(*plugins)
        await made.hold("s1")
        await made.release("s1")
        assert warnings == []
    assert stopped.received == []


async def test_one_that_comes_up_in_between_is_not_asked_to_release() -> None:
    plugin = holder()
    plugin.die()
    made, _ = media(plugin)
    await made.hold("s1")
    plugin.start()
    await made.release("s1")
    assert plugin.received == []


async def test_players_of_a_plugin_that_ended_are_named() -> None:
    plugin = holder()
    made, warnings = media(plugin)
    await made.hold("s1")
    plugin.die()
    plugin.start()
    await made.release("s1")
    assert methods(plugin) == [("media.hold", "s1")]
    (warning,) = warnings
    assert "desktop has paused Spotify, VLC while you spoke, and could not play it again" in warning
    await made.hold("s2")
    await made.release("s2")
    assert len(warnings) == 1


async def test_what_a_session_before_has_paused_is_named_too() -> None:
    plugin = holder()
    made, warnings = media(plugin)
    await made.hold("s1")
    plugin.answers["media.hold"] = {"held": []}
    await made.hold("s2")
    await made.release("s1")
    plugin.die()
    await made.release("s2")
    assert "Spotify, VLC" in warnings[0]


async def test_a_plugin_that_never_answers_costs_a_bounded_time(autojump_clock: MockClock) -> None:
    deadlines = Deadlines()
    plugin = FakeInstance("desktop", provides=["media.hold@1"], deadlines=deadlines)
    made, warnings = media(plugin)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deadlines.run)
        began = trio.current_time()
        await made.hold("s1")
        await made.release("s1")
        assert trio.current_time() - began <= 2 * CALL_SECONDS + 0.1
        nursery.cancel_scope.cancel()
    assert methods(plugin) == [("media.hold", "s1"), ("media.release", "s1")]
    # It may have paused nobody; what is not known is not told.
    assert warnings == []


async def test_nonsense_and_refusals_end_no_session() -> None:
    refusal = RpcError(ErrorCode.PLUGIN_FAILED, "No.")
    for wrong in ({"held": 7}, [], refusal):
        made, warnings = media(holder(**{"media.hold": wrong, "media.release": wrong}))
        await made.hold("s1")
        await made.release("s1")
        assert warnings == []
    made, warnings = media(holder(**{"media.release": refusal}))
    await made.hold("s1")
    await made.release("s1")
    assert "Spotify, VLC" in warnings[0]
