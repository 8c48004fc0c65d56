from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utter_protocol import ABI, PROTOCOL
from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.versions import WINDOW, ProtocolVersion, negotiate, oldest_accepted, parse_protocol

versions = st.builds(ProtocolVersion, st.integers(0, 12), st.integers(0, 12))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1.0", (1, 0)), ("0.9", (0, 9)), ("1.10", (1, 10)), ("999999.999999", (999999, 999999))],
)
def test_parses_major_and_minor(text: str, expected: tuple[int, int]) -> None:
    assert parse_protocol(text) == expected
    assert str(parse_protocol(text)) == text


@pytest.mark.parametrize(
    "text",
    ["", "1", "1.", ".1", "1.0.0", "01.0", "1.00", "+1.0", "-1.0", "1.0\n", " 1.0", "1.x", "1.\u0661", "1.1000000"],
)
def test_refuses_any_other_form(text: str) -> None:
    with pytest.raises(ValueError, match="is not a protocol version") as caught:
        parse_protocol(text)
    assert repr(text) in str(caught.value)


def test_a_long_malformed_version_is_not_repeated_whole() -> None:
    with pytest.raises(ValueError, match="is not a protocol version") as caught:
        parse_protocol("9" * 1_000_000)
    assert len(str(caught.value)) < 200


def test_the_current_versions_negotiate_without_a_warning() -> None:
    assert negotiate(PROTOCOL, ABI, PROTOCOL, ABI) == (PROTOCOL, ABI, ())


# A made-up later runner shows that the window is computed.
@pytest.mark.parametrize(
    ("plugin", "expected"),
    [
        ("1.5", "1.5"),
        ("1.4", "1.4"),
        ("1.3", "1.3"),
        ("1.6", "1.5"),
        ("1.99", "1.5"),
        ("1.2", None),
        ("1.0", None),
        ("0.5", None),
        ("2.0", None),
        ("2.5", None),
        ("nonsense", None),
        ("1.05", None),
    ],
)
def test_window_of_runner_1_5(plugin: str, expected: str | None) -> None:
    if expected is None:
        with pytest.raises(RpcError) as caught:
            negotiate("1.5", 1, plugin, 1)
        assert caught.value.code == ErrorCode.INCOMPATIBLE
        assert caught.value.data is not None
        data = dict(caught.value.data)
        assert data.pop("oldest", "1.3") == "1.3"
        assert data == {"axis": "protocol", "runner": "1.5", "plugin": plugin}
        return
    protocol, abi, warnings = negotiate("1.5", 1, plugin, 1)
    assert (protocol, abi) == (expected, 1)
    assert len(warnings) == (0 if plugin == "1.5" else 1)
    assert all(plugin in warning and "1.5" in warning for warning in warnings)


@pytest.mark.parametrize("abi", [0, 2, -1])
def test_another_abi_is_refused(abi: int) -> None:
    with pytest.raises(RpcError) as caught:
        negotiate("1.0", 1, "1.0", abi)
    assert caught.value.code == ErrorCode.INCOMPATIBLE
    assert caught.value.data == {"axis": "abi", "runner": 1, "plugin": abi}


def test_the_window_never_reaches_below_zero() -> None:
    assert oldest_accepted(ProtocolVersion(1, 0)) == (1, 0)
    assert oldest_accepted(ProtocolVersion(1, 1)) == (1, 0)
    assert oldest_accepted(ProtocolVersion(3, 7)) == (3, 5)


@given(versions, versions, st.integers(1, 3), st.integers(1, 3))
def test_negotiation_accepts_exactly_the_window(
    runner: ProtocolVersion, plugin: ProtocolVersion, runner_abi: int, plugin_abi: int
) -> None:
    acceptable = runner.major == plugin.major and plugin.minor >= runner.minor - WINDOW and runner_abi == plugin_abi
    try:
        protocol, abi, warnings = negotiate(str(runner), runner_abi, str(plugin), plugin_abi)
    except RpcError as error:
        assert not acceptable
        assert error.code == ErrorCode.INCOMPATIBLE  # noqa: PT017 - both outcomes are checked here
        return
    assert acceptable
    assert parse_protocol(protocol) == min(runner, plugin)
    assert abi == runner_abi
    assert bool(warnings) == (runner != plugin)
