"""What the desktop is like at this moment: the fields that `context` plugins tell of.

Rules here: only this file holds the fields; each keeps who told it and when, and all of them are `screen`, whatever a
plugin says. A plugin that announces its changes is believed until it goes down; one that does not is asked again. A
field belongs to the plugin that told it first, and is gone with that plugin.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import msgspec
import trio
from msgspec import Raw

from utter_protocol.errors import RpcError
from utter_protocol.kinds import ContextChanged, SnapshotParams
from utter_protocol.messages import encode
from utter_runner.config.log_fields import about
from utter_runner.rpc.params import decode_params
from utter_runner.supervision.dialect import decode_answer

if TYPE_CHECKING:
    from utter_runner.supervision.instance import Instance
    from utter_runner.supervision.supervisor import Supervisor

logger = logging.getLogger(__name__)

SNAPSHOT = "context.snapshot"
CHANGED = "context.changed"
CAPABILITY = "context.snapshot@1"
META = "meta"
WINDOW = "window"
"""The field that tells of the window in front."""
MAX_FIELDS = 256
MAX_FIELD_BYTES = 256 * 1024
MAX_CONTEXT_BYTES = 4 * 1024 * 1024
"""Of all fields together: a snapshot must fit into a frame."""
FRESH_SECONDS = 1.0
"""How long the answer of a plugin that announces nothing is taken for the present."""
ASK_SECONDS = 2.0


class Field(msgspec.Struct, frozen=True):
    """One field: its value as JSON, the plugin that told it, when (trio's clock, seconds), and its size in bytes."""

    value: Raw
    source: str
    at: float
    size: int


class ContextCache:
    """The fields of all plugins.

    Args:
        supervisor: knows the plugins.
    """

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._fields: dict[str, Field] = {}
        # Which fields each epoch has announced, and when each of the others was asked last.
        self._announced: dict[tuple[str, int], set[str]] = {}
        self._asked: dict[str, float] = {}

    # ---- what plugins tell

    def admitted(self, instance: Instance) -> None:
        """A plugin is up: ask for what it knows, so that the first who wants it does not wait."""
        if not _offers(instance):
            return

        def on_reply(result: Raw | None, error: RpcError | None) -> None:
            if error is not None:
                logger.warning("%s: %s: %s", instance.id, SNAPSHOT, error, extra=about(instance))
            elif result is not None:
                self._take_answer(instance, result)

        instance.request(SNAPSHOT, b"{}", on_reply, timeout=ASK_SECONDS)

    def changed(self, instance: Instance, params: Raw) -> None:
        """A plugin announced `context.changed`. Raises RpcError."""
        announced = decode_params(params, ContextChanged)
        if not _lives(instance):
            return
        names = self._announced.setdefault((instance.id, instance.epoch), set())
        for name in announced.context:
            if len(names) < MAX_FIELDS and len(name) < MAX_FIELD_BYTES:
                names.add(name)
        self._take(instance, announced.context)

    def forget(self, instance: Instance) -> None:
        """A plugin is down: what it told is not the present any more."""
        self._fields = {name: field for name, field in self._fields.items() if field.source != instance.id}
        self._announced = {epoch: names for epoch, names in self._announced.items() if epoch[0] != instance.id}
        self._asked.pop(instance.id, None)

    def _take_answer(self, instance: Instance, result: Raw) -> None:
        if not _lives(instance):
            return
        try:
            fields = decode_answer(result, dict[str, Any], SNAPSHOT, instance.id)
        except RpcError as error:
            logger.warning("%s", error, extra=about(instance))
            return
        self._asked[instance.id] = trio.current_time()
        # The answer may have been under way when a field changed: what was announced is newer.
        announced = self._announced.get((instance.id, instance.epoch), set())
        self._take(instance, {name: value for name, value in fields.items() if name not in announced})

    def _take(self, instance: Instance, fields: dict[str, Any]) -> None:
        now = trio.current_time()
        total = sum(field.size for field in self._fields.values())
        for name, value in fields.items():
            known = self._fields.get(name)
            if name == META or (known is not None and known.source != instance.id):
                continue
            full = known is None and len(self._fields) >= MAX_FIELDS
            # Also where the new one is not kept: its old value is not the present any more.
            if known is not None:
                total -= self._fields.pop(name).size
            if value is None:
                continue
            encoded = encode(value)
            size = len(encoded) + len(name)
            if size > MAX_FIELD_BYTES or full or total + size > MAX_CONTEXT_BYTES:
                logger.warning(
                    "%s: the field %.60r is not kept: at most %d fields of %d bytes are, and %d bytes of all",
                    instance.id, name, MAX_FIELDS, MAX_FIELD_BYTES, MAX_CONTEXT_BYTES,
                    extra=about(instance),
                )  # fmt: skip
                continue
            total += size
            self._fields[name] = Field(Raw(encoded), instance.id, now, size)

    # ---- what is asked

    async def snapshot(self, sources: list[str]) -> dict[str, Any]:
        """Return a Context: the fields named in `sources`, or all, and under `meta` where each came from."""
        now = trio.current_time()
        stale = [
            instance
            for instance in self._supervisor.instances
            if instance.running
            and _offers(instance)
            and (instance.id, instance.epoch) not in self._announced
            and now - self._asked.get(instance.id, -FRESH_SECONDS) >= FRESH_SECONDS
        ]
        async with trio.open_nursery() as nursery:
            for instance in stale:
                nursery.start_soon(self._ask, instance)
        now = trio.current_time()
        chosen = {name: field for name, field in self._fields.items() if not sources or name in sources}
        meta = {
            name: {"source": field.source, "age_ms": round((now - field.at) * 1000), "provenance": "screen"}
            for name, field in chosen.items()
        }
        return {**{name: field.value for name, field in chosen.items()}, META: meta}

    async def window(self) -> str:
        """Return what tells the window in front from others: its id if it is told, else all that is; "" for none."""
        value = (await self.snapshot([WINDOW])).get(WINDOW)
        if value is None:
            return ""
        window = msgspec.json.decode(value)
        known = window.get("id") if isinstance(window, dict) else None
        return f"{self._fields[WINDOW].source} {known}" if known else bytes(value).decode()

    async def _ask(self, instance: Instance) -> None:
        try:
            self._take_answer(instance, await instance.call(SNAPSHOT, SnapshotParams(), timeout=ASK_SECONDS))
        except RpcError as error:
            logger.warning("%s: %s: %s", instance.id, SNAPSHOT, error, extra=about(instance))


def _lives(instance: Instance) -> bool:
    """Whether what a plugin says is of the present: not its last words, which are read when it is down already."""
    return instance.running or instance.status == "starting"


def _offers(instance: Instance) -> bool:
    return instance.handshake is not None and SNAPSHOT in instance.handshake.methods
