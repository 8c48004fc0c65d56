"""The record of plugins and those that run: what the supervisor and the daemon ask before a plugin may run.

Rules here: what has drifted is for `operate` to say; this file knows what of a spec, of a handshake and of advertised
ops goes into the question, and turns a refusal into the error of whoever asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from utter_protocol.drift import Announced, DriftResult, tool_of
from utter_protocol.errors import ErrorCode, RpcError
from utter_runner.operate.watching import MAX_SAID, DriftError, DriftWatch
from utter_runner.policy import canonical_op
from utter_runner.supervision.launch import SpawnError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from utter_protocol.methods import Op
    from utter_runner.config import Config
    from utter_runner.supervision.instance import Instance
    from utter_runner.supervision.spec import PluginSpec


class Recorded:
    """Holds plugins against the record; with `[runner] locked` it refuses those that have drifted.

    Args:
        config: returns the configuration that holds now.
        environ: the runner's, which says where the record is.
        on_change: told when there is another drift than before.
    """

    def __init__(
        self, config: Callable[[], Config], environ: Mapping[str, str], on_change: Callable[[], object]
    ) -> None:
        self._watch = DriftWatch(config, environ, on_change)
        self.run = self._watch.run
        self.look_soon = self._watch.look_soon
        self.warnings = self._watch.warnings
        self.ended = self._watch.ended

    async def allow(self, spec: PluginSpec) -> None:
        """Let a plugin be started. Raises SpawnError."""
        try:
            await self._watch.check(spec.id, spec.made_of)
        except DriftError as error:
            raise SpawnError(str(error)) from None

    async def meet(self, instance: Instance, ops: Sequence[Op]) -> None:
        """Let a plugin that was started be admitted, after what it says of itself. Raises RpcError."""
        handshake, spec = instance.handshake, instance.spec
        if handshake is None:
            return
        announced = Announced(
            version=handshake.version[:MAX_SAID],
            protocol=handshake.protocol,
            abi=handshake.negotiated.abi,
            permissions=[one[:MAX_SAID] for one in handshake.permissions if one not in spec.permissions],
            tools={canonical_op(op.op) or op.op: tool_of(op) for op in ops},
        )
        try:
            self._watch.meet(instance.id, announced, spec.made_of)
            await self._watch.check_again(instance.id, spec.made_of)
        except DriftError as error:
            data = {"axis": "lockfile", **msgspec.to_builtins(error.drift)}
            raise RpcError(ErrorCode.INCOMPATIBLE, str(error), data) from None

    async def look(self) -> DriftResult:
        """Look at everything anew, and return what `runner.drift` answers."""
        await self._watch.look()
        return self._watch.result()

    def status(self) -> dict[str, Any]:
        """What `runner.status` says of it."""
        return {"locked": self._watch.locked, "drift": msgspec.to_builtins(self._watch.drift)}
