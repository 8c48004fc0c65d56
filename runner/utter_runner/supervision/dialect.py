"""What a plugin speaks: handshake and health of the utter plugin protocol.

Rules here: the supervisor knows processes, epochs and limits; everything that it must know about the other side's
language comes through `Dialect`, so that another protocol is another implementation of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec
import trio

from utter_protocol import ABI, PROTOCOL
from utter_protocol.capabilities import MAX_DECLARED, load_registry
from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.inherited import RING_CAPABILITY
from utter_protocol.manifest import unknown_permissions
from utter_protocol.methods import DescribeResult, HealthResult, HelloParams, HelloResult
from utter_protocol.models import missing_models
from utter_protocol.versions import Negotiated, negotiate

if TYPE_CHECKING:
    from msgspec import Raw

    from utter_runner.rpc.peer import Peer
    from utter_runner.supervision.spec import PluginSpec

T = TypeVar("T")


class Handshake(msgspec.Struct, frozen=True, kw_only=True):
    """What a plugin said of itself, checked."""

    version: str
    kind: str
    negotiated: Negotiated
    protocol: str = ""
    """The version that it says that it speaks, which is not always what was negotiated."""
    provides: tuple[str, ...]
    requires: tuple[str, ...]
    permissions: tuple[str, ...]
    methods: tuple[str, ...]
    streams: tuple[str, ...]
    health: HealthResult
    warnings: tuple[str, ...]


class Dialect(Protocol):
    """The language of one family of plugins."""

    async def handshake(self, peer: Peer, spec: PluginSpec, epoch: int, timeout: float) -> Handshake:
        """Greet the plugin and learn what it is. Raises RpcError."""

    async def health(self, peer: Peer, timeout: float) -> HealthResult:
        """Ask whether it is well. Raises RpcError."""


def decode_answer(raw: Raw, type_: type[T], method: str, plugin: str) -> T:
    """Return an answer as its Struct.

    Raises:
        RpcError: -32000 that names plugin, method and field; an answer of another shape is the plugin's failure.
    """
    try:
        return msgspec.json.decode(raw, type=type_)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise RpcError(
            ErrorCode.PLUGIN_FAILED,
            f"{plugin} answered {method} with something else than the protocol says: {error}",
            {"plugin": plugin, "method": method},
        ) from None


class UtterDialect:
    """Content-Length frames and `protocol.hello` (PROTOCOL.md, "The handshake")."""

    def __init__(self, runner: str) -> None:
        self._runner = runner

    async def handshake(self, peer: Peer, spec: PluginSpec, epoch: int, timeout: float) -> Handshake:
        """Greet the plugin: hello, then describe and health side by side."""
        with trio.move_on_after(timeout):
            params = HelloParams(protocol=PROTOCOL, abi=ABI, runner=self._runner, epoch=epoch, settings=spec.settings)
            raw = await peer.call("protocol.hello", params, timeout=timeout)
            hello = decode_answer(raw, HelloResult, "protocol.hello", spec.id)
            negotiated = negotiate(PROTOCOL, ABI, hello.protocol, hello.abi)
            answers: dict[str, Raw] = {}

            async def ask(method: str) -> None:
                try:
                    answers[method] = await peer.call(method, timeout=timeout)
                except RpcError as error:
                    failures.append(error)

            failures: list[RpcError] = []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, "plugin.describe")
                nursery.start_soon(ask, "plugin.health")
            if failures:
                raise failures[0]
            described = decode_answer(answers["plugin.describe"], DescribeResult, "plugin.describe", spec.id)
            health = decode_answer(answers["plugin.health"], HealthResult, "plugin.health", spec.id)
            return _unite(spec, hello, negotiated, described, health)
        raise RpcError(
            ErrorCode.TIMED_OUT,
            f"{spec.id} did not finish the handshake within {round(timeout * 1000)} ms ([runner] handshake_timeout_ms)",
            {"bound": "handshake_timeout_ms", "limit": round(timeout * 1000)},
        )

    async def health(self, peer: Peer, timeout: float) -> HealthResult:
        """Ask `plugin.health`."""
        return decode_answer(
            await peer.call("plugin.health", timeout=timeout), HealthResult, "plugin.health", peer.name
        )


def _unite(
    spec: PluginSpec, hello: HelloResult, negotiated: Negotiated, described: DescribeResult, health: HealthResult
) -> Handshake:
    # Looked at anew for each epoch: they may have been fetched meanwhile.
    missing = missing_models(Path(spec.model_store), spec.id, spec.models)
    warnings = [*spec.warnings, *filter(None, [missing]), *negotiated.warnings]
    if hello.plugin.name != spec.id:
        warnings.append(f"The plugin is configured as {spec.id} and calls itself {hello.plugin.name}.")
    if spec.kind and hello.plugin.kind != spec.kind:
        warnings.append(f"The plugin is declared as kind {spec.kind} and calls itself {hello.plugin.kind}.")
    if hello.transport != spec.transport:
        warnings.append(f"The plugin is connected over {spec.transport} and says that it speaks {hello.transport}.")
    if spec.transport == "stdio" and RING_CAPABILITY in hello.requires and RING_CAPABILITY not in spec.requires:
        warnings.append(
            f"It requires {RING_CAPABILITY} in protocol.hello only, which is too late to inherit the audio ring over "
            "stdio. Add it to requires in its manifest or its [[plugin]] table."
        )
    provides = _union(spec.provides, hello.provides)
    requires = _union(spec.requires, hello.requires)
    permissions = _union(spec.permissions, hello.permissions)
    warnings += load_registry().classify((*provides, *requires)).warnings
    warnings += unknown_permissions(list(permissions))
    return Handshake(
        version=hello.plugin.version,
        kind=spec.kind or hello.plugin.kind,
        negotiated=negotiated,
        protocol=hello.protocol,
        provides=provides,
        requires=requires,
        permissions=permissions,
        methods=tuple(described.methods),
        streams=tuple(described.streams),
        health=health,
        warnings=tuple(warnings),
    )


def _union(first: tuple[str, ...], second: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second)))[:MAX_DECLARED]
