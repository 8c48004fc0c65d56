"""What plugins offer beyond their methods: ops, candidates to pick from, and phrases that are likely to be said.

Rules here: a plugin is asked before it is admitted, so that whoever finds it running finds what it offers; what it
offered is gone when it is down, but for its phrases, which only count while it runs, and are gone with it for good.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.methods import CapabilitiesResult, CatalogResult, HintsResult, Op
from utter_runner.config.log_fields import about
from utter_runner.policy import AdvertiseError, CandidateLimitError
from utter_runner.supervision.dialect import decode_answer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from msgspec import Raw

    from utter_runner.policy import CandidateStore, OpRegistry
    from utter_runner.supervision.instance import Instance

logger = logging.getLogger(__name__)


class Offers:
    """Asks plugins, and remembers.

    Args:
        ops: the table of ops.
        candidates: what may be picked under `screen`.
        meet: awaited with a plugin's ops when they are known; may refuse the plugin by an RpcError.
        timeout: asked for the seconds that each answer may take. A plugin that is asked is still starting, so that
            it is the handshake's bound: whoever raises that for a slow machine means this, too.
    """

    def __init__(
        self,
        ops: OpRegistry,
        candidates: CandidateStore,
        meet: Callable[[Instance, Sequence[Op]], Awaitable[None]],
        *,
        timeout: Callable[[], float],
    ) -> None:
        self._meet = meet
        self._ops = ops
        self._timeout = timeout
        self._candidates = candidates
        self._hints: dict[str, list[str]] = {}

    async def learn(self, instance: Instance) -> None:
        """Learn what a plugin offers before it is admitted. Raises RpcError."""
        peer = instance.peer
        if peer is None or instance.handshake is None:
            return
        offered = instance.handshake.methods
        ops: list[Op] = []
        if "action.capabilities" in offered:
            raw = await peer.call("action.capabilities", timeout=self._timeout())
            ops = decode_answer(raw, CapabilitiesResult, "action.capabilities", instance.id).ops
            try:
                self._ops.advertise(instance.id, ops)
            except AdvertiseError as error:
                raise RpcError(ErrorCode.PLUGIN_FAILED, str(error), {"plugin": instance.id, "op": error.op}) from None
        elif "input.inject" in offered:
            ops = [Op(op="input", side_effect="destructive")]
            self._ops.advertise(instance.id, ops)
        await self._meet(instance, ops)
        if "knowledge.catalog" in offered:
            raw = await peer.call("knowledge.catalog", timeout=self._timeout())
            self._take_catalog(instance, decode_answer(raw, CatalogResult, "knowledge.catalog", instance.id))
        if "router.hints" in offered:
            raw = await peer.call("router.hints", timeout=self._timeout())
            self._hints[instance.id] = decode_answer(raw, HintsResult, "router.hints", instance.id).phrases

    def _take_catalog(self, instance: Instance, catalog: CatalogResult) -> None:
        self._candidates.forget(instance.id)
        if instance.memory.screen:
            # It was handed something before it answered.
            logger.warning(
                "%s: its catalog is not taken: it has read something from the screen, and what may be picked must "
                "not come from there",
                instance.id,
                extra=about(instance),
            )
            catalog.candidates = []
        try:
            self._candidates.record(catalog.candidates, source="knowledge", owner=instance.id, now=trio.current_time())
        except CandidateLimitError as error:
            logger.warning("%s: %s", instance.id, error, extra=about(instance))

    def hints_changed(self, instance: Instance, _params: Raw) -> None:
        """A router has other phrases: ask for them."""

        def on_reply(result: Raw | None, error: RpcError | None) -> None:
            if error is not None:
                logger.warning("%s: router.hints: %s", instance.id, error, extra=about(instance))
            elif result is not None:
                self._hints[instance.id] = decode_answer(result, HintsResult, "router.hints", instance.id).phrases

        instance.request("router.hints", b"{}", on_reply, timeout=self._timeout())

    def hints(self, instances: Iterable[Instance]) -> list[str]:
        """The phrases of those that run."""
        return [phrase for one in instances if one.running for phrase in self._hints.get(one.id, ())]

    def withdraw(self, plugin: str) -> None:
        """A plugin is down."""
        self._ops.withdraw(plugin)
        self._candidates.forget(plugin)

    def forget(self, plugin: str) -> None:
        """A plugin is no longer configured."""
        self.withdraw(plugin)
        self._hints.pop(plugin, None)
