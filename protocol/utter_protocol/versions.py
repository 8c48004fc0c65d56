"""Protocol versions and what two sides of the wire agree on (PROTOCOL.md, "Versions").

Rules here: pure functions; which versions are accepted is computed from the runner's own version and `WINDOW`, never
listed; a refusal is an `RpcError` -32004 whose data names the axis and both sides' values.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from utter_protocol.errors import ErrorCode, RpcError

WINDOW = 2
"""How many minor versions back a plugin may be (N-2)."""

PROTOCOL_PATTERN = r"(?:0|[1-9][0-9]{0,5})\.(?:0|[1-9][0-9]{0,5})"
_PROTOCOL = re.compile(PROTOCOL_PATTERN)
_SHOWN = 40


class ProtocolVersion(NamedTuple):
    """A protocol version; it orders as numbers do, so 1.10 is newer than 1.9."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


class Negotiated(NamedTuple):
    """What both sides speak from now on, and sentences for the user about what is not quite right."""

    protocol: str
    abi: int
    warnings: tuple[str, ...]


def parse_protocol(text: str) -> ProtocolVersion:
    """The version that `text` ("major.minor", decimal, no leading zeros) names.

    Raises:
        ValueError: `text` has another form; the message shows it.
    """
    if _PROTOCOL.fullmatch(text) is None:
        shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
        raise ValueError(f'{shown!r} is not a protocol version. It has the form "major.minor", for example "1.0".')
    major, minor = text.split(".")
    return ProtocolVersion(int(major), int(minor))


def oldest_accepted(runner: ProtocolVersion) -> ProtocolVersion:
    """The oldest protocol version that a runner of version `runner` still speaks (the same major, N-2)."""
    return ProtocolVersion(runner.major, max(0, runner.minor - WINDOW))


def negotiate(runner_protocol: str, runner_abi: int, plugin_protocol: str, plugin_abi: int) -> Negotiated:
    """What runner and plugin speak, from what each says that it speaks.

    A plugin with a newer minor is answered in the runner's version, one with an older minor in its own.

    Raises:
        RpcError: -32004 when the major or the ABI differs, the minor is older than N-2, or the plugin's version is
            malformed. `data` is `{axis: "protocol" | "abi", runner, plugin}`, and `oldest` for a minor that is too old.
        ValueError: `runner_protocol` is malformed.
    """
    runner = parse_protocol(runner_protocol)
    try:
        plugin = parse_protocol(plugin_protocol)
    except ValueError as error:
        raise _refused("protocol", str(error), runner_protocol, plugin_protocol) from None
    if plugin.major != runner.major:
        message = f"The plugin speaks protocol {plugin} and the runner {runner}: the major versions must be equal."
        raise _refused("protocol", message, runner_protocol, plugin_protocol)
    oldest = oldest_accepted(runner)
    if plugin < oldest:
        message = f"The plugin speaks protocol {plugin} and the runner {oldest} to {runner}: update the plugin."
        raise _refused("protocol", message, runner_protocol, plugin_protocol, oldest=str(oldest))
    if plugin_abi != runner_abi:
        message = f"The plugin speaks abi {plugin_abi} and the runner abi {runner_abi}: the two must be equal."
        raise _refused("abi", message, runner_abi, plugin_abi)
    if plugin == runner:
        return Negotiated(str(runner), runner_abi, ())
    if plugin > runner:
        warning = f"The plugin speaks protocol {plugin}, which is newer than the runner's {runner}: {runner} is used."
    else:
        warning = f"The plugin speaks protocol {plugin}, which is older than the runner's {runner}: {plugin} is used."
    return Negotiated(str(min(plugin, runner)), runner_abi, (warning,))


def _refused(axis: str, message: str, runner: str | int, plugin: str | int, **more: Any) -> RpcError:
    return RpcError(ErrorCode.INCOMPATIBLE, message, {"axis": axis, "runner": runner, "plugin": plugin, **more})
