"""The table of ops: what the runner knows by itself and what plugins advertise.

Rules here: names are canonical (no `action.` prefix) everywhere behind `canonical_op`; what a plugin advertises is
taken whole or refused whole; it can make an op stricter, never laxer. The first plugin that ever registered is the
provider, also after restarts.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from utter_protocol.json_schema import compile_schema

from .builtin import BUILTIN, Builtin

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jsonschema_rs import Validator

    from utter_protocol.methods import Op, SideEffect

MAX_OPS_PER_PLUGIN = 256

_PREFIX = "action."
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
_SEVERITY: dict[SideEffect, int] = {"none": 0, "local": 1, "external": 2, "destructive": 3}


class AdvertiseError(ValueError):
    """What a plugin advertised cannot be taken. The message names the plugin, the op and the reason.

    Attributes:
        plugin: the plugin's id.
        op: the op as advertised.
    """

    def __init__(self, plugin: str, op: str, reason: str) -> None:
        super().__init__(f"Plugin '{plugin}', op '{op}': {reason}.")
        self.plugin = plugin
        self.op = op


class OpSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One op of one plugin, the runner's own knowledge included.

    Attributes:
        op: the canonical name.
        plugin: who runs it.
        invoke_as: the name that the plugin advertised.
        side_effect: the stronger of the runner's and the plugin's class.
        needs_confirm: the plugin wants a confirmation.
        declared: names of the arguments that are known beforehand.
        validator: the plugin's schema, or None.
        builtin: what the runner knows, or None.
    """

    op: str
    plugin: str
    invoke_as: str
    side_effect: SideEffect
    needs_confirm: bool
    declared: frozenset[str]
    validator: Validator | None
    builtin: Builtin | None


def canonical_op(op: str) -> str | None:
    """An op's one name, without any `action.` before it; None if it cannot be the name of an op."""
    while op.startswith(_PREFIX):
        op = op[len(_PREFIX) :]
    return op if _NAME.fullmatch(op) else None


class OpRegistry:
    """Ops by name and plugin. Not thread-safe; the loop owns it."""

    def __init__(self) -> None:
        self._rank: dict[str, int] = {}
        self._by_plugin: dict[str, dict[str, OpSpec]] = {}
        self._first: dict[str, OpSpec] = {}

    def advertise(self, plugin_id: str, ops: Iterable[Op]) -> None:
        """Take what a plugin answered to `action.capabilities`, instead of what it advertised before.

        Raises:
            AdvertiseError: a bad name, a name twice, a bad schema, too many ops; then nothing has changed.
        """
        specs: dict[str, OpSpec] = {}
        for op in ops:
            spec = _spec(plugin_id, op)
            if spec.op in specs:
                raise AdvertiseError(plugin_id, op.op, f"'{spec.op}' is advertised twice")
            specs[spec.op] = spec
            if len(specs) > MAX_OPS_PER_PLUGIN:
                raise AdvertiseError(plugin_id, op.op, f"more than {MAX_OPS_PER_PLUGIN} ops are advertised")
        self._rank.setdefault(plugin_id, len(self._rank))
        self._by_plugin[plugin_id] = specs
        self._choose()

    def withdraw(self, plugin_id: str) -> None:
        """Forget a plugin's ops; it keeps its place for when it comes back."""
        if self._by_plugin.pop(plugin_id, None) is not None:
            self._choose()

    def provider(self, op: str) -> str | None:
        """The id of the plugin that runs `op` (any spelling) when nobody names one."""
        spec = self.find(canonical_op(op) or "")
        return None if spec is None else spec.plugin

    def ops(self, plugin_id: str) -> tuple[str, ...]:
        """The canonical names of what a plugin advertises, in its order."""
        return tuple(self._by_plugin.get(plugin_id, ()))

    def specs(self) -> tuple[OpSpec, ...]:
        """What all plugins advertise, by op and then by rank: the provider of an op before the others."""
        ranked = sorted(self._by_plugin, key=self._rank.__getitem__)
        return tuple(sorted((spec for p in ranked for spec in self._by_plugin[p].values()), key=lambda spec: spec.op))

    def find(self, op: str, plugin_id: str | None = None) -> OpSpec | None:
        """The provider's entry for a canonical name, or that of the plugin named."""
        if plugin_id is None:
            return self._first.get(op)
        return self._by_plugin.get(plugin_id, {}).get(op)

    def _choose(self) -> None:
        self._first = {}
        for plugin_id in sorted(self._by_plugin, key=self._rank.__getitem__):
            for op, spec in self._by_plugin[plugin_id].items():
                self._first.setdefault(op, spec)


def _spec(plugin_id: str, op: Op) -> OpSpec:
    canonical = canonical_op(op.op)
    if canonical is None:
        raise AdvertiseError(plugin_id, op.op[:80], "an op's name has 1 to 64 of the characters a-z 0-9 _ . -")
    builtin = BUILTIN.get(canonical)
    validator = None
    declared: frozenset[str] = frozenset() if builtin is None else builtin.arguments
    if op.schema is not None:
        try:
            validator = compile_schema(op.schema)
        except ValueError as error:
            raise AdvertiseError(plugin_id, op.op, f"its schema {error}") from None
        properties = op.schema.get("properties")
        if builtin is None and isinstance(properties, dict):
            declared = frozenset(properties)
    side_effect = op.side_effect
    if builtin is not None and _SEVERITY[builtin.side_effect] > _SEVERITY[side_effect]:
        side_effect = builtin.side_effect
    return OpSpec(
        op=canonical,
        plugin=plugin_id,
        invoke_as=op.op,
        side_effect=side_effect,
        needs_confirm=op.needs_confirm,
        declared=declared,
        validator=validator,
        builtin=builtin,
    )
