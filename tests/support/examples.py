"""What the tests of the example plugins have in common, whatever the examples are written in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.messages import decode_error

if TYPE_CHECKING:
    from utter_protocol.manifest import Manifest
    from utter_sdk.testing import PluginProcess


def invoke(op: str, **args: Any) -> dict[str, Any]:
    """The params of `action.invoke`."""
    return {"op": op, "args": args, "provenance": "user"}


def failure(process: PluginProcess, method: str, params: Any = None) -> RpcError:
    """The error that a request is answered with."""
    with pytest.raises(RpcError) as caught:
        process.call(method, params)
    return caught.value


def assert_greets_as(process: PluginProcess, manifest: Manifest) -> None:
    """Manifest and handshake say the same."""
    said = process.hello
    assert (said.protocol, said.abi, said.transport) == (manifest.protocol, manifest.abi, manifest.transport)
    assert (said.plugin.name, said.plugin.version) == (manifest.name, manifest.version)
    assert (said.plugin.kind, said.provides) == (manifest.kind, manifest.provides)
    assert (said.requires, said.permissions) == (manifest.requires, manifest.permissions)
    assert process.health.status == "ok"
    assert "action.invoke" in process.description.methods


def assert_ends_over(process: PluginProcess, data: bytes, kind: str, why: str) -> None:
    """Bytes that break the framing are answered with its name, and end the plugin, which says why."""
    process.write(data)
    answer = process.unmatched()
    assert answer.id is None
    assert isinstance(answer.error, msgspec.Raw)
    error = decode_error(answer.error)
    assert (error.code, error.data) == (ErrorCode.INVALID_REQUEST, {"framing": kind})
    assert process.wait() == 1
    assert process.stderr == f"the runner broke the framing: {why}\n"
