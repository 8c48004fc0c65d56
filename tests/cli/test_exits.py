from __future__ import annotations

from typing import Any

import pytest

from utter_protocol.errors import ErrorCode
from utter_runner.cli.exits import Exit, of_command, of_error, of_explanation, of_results, of_session, of_step

OK = {"op": "a", "ok": True, "detail": "", "decision": "allow"}
FAILED = {"op": "a", "ok": False, "detail": "It did not work.", "decision": "allow"}


def refused(code: int, decision: str = "allow") -> dict[str, Any]:
    return {"op": "a", "ok": False, "detail": "", "decision": decision, "error": {"code": code, "message": ""}}


DENIED = refused(-32003, "deny")
CRASHED = refused(-32000)


@pytest.mark.parametrize(
    ("code", "alone", "in_a_step"),
    [
        (ErrorCode.PARSE_ERROR, 1, 1),
        (ErrorCode.INVALID_REQUEST, 1, 1),
        (ErrorCode.METHOD_NOT_FOUND, 4, 4),
        (ErrorCode.INVALID_PARAMS, 2, 1),
        (ErrorCode.INTERNAL_ERROR, 1, 1),
        (ErrorCode.PLUGIN_FAILED, 4, 4),
        (ErrorCode.TIMED_OUT, 4, 4),
        (ErrorCode.CANCELLED, 1, 1),
        (ErrorCode.NOT_PERMITTED, 3, 3),
        (ErrorCode.INCOMPATIBLE, 4, 4),
        (ErrorCode.CAPABILITY_MISSING, 4, 4),
        (ErrorCode.UNTRUSTED_PROVENANCE, 3, 3),
        (ErrorCode.TOO_LARGE_INLINE, 2, 1),
        (-1, 1, 1),
    ],
)
def test_every_error_code(code: int, alone: int, in_a_step: int) -> None:
    assert (of_error(code), of_step(refused(code))) == (alone, in_a_step)


def test_the_table_above_names_every_code() -> None:
    table = test_every_error_code.pytestmark[0].args[1]  # type: ignore[attr-defined] # pytest puts it there
    assert {row[0] for row in table} >= set(ErrorCode)


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([], 1),
        ([OK], 0),
        ([OK, OK], 0),
        ([OK, FAILED], 1),
        ([FAILED, CRASHED], 4),
        ([CRASHED, DENIED, FAILED, OK], 3),
        ([{"op": "a", "ok": False, "decision": "deny"}], 3),
        ([refused(-32003, "confirm")], 3),
        ([refused(-32006, "deny")], 3),
    ],
)
def test_the_gravest_step_decides(results: list[dict[str, Any]], expected: int) -> None:
    assert of_results(results) == expected
    assert of_command({"results": results}) == expected


def test_not_understood_is_a_failure_whatever_else_is_said() -> None:
    assert of_command({"results": [OK], "understood": False}) == Exit.FAILED


@pytest.mark.parametrize(
    ("outcome", "results", "expected"),
    [
        ("done", [OK], 0),
        ("failed", [FAILED], 1),
        ("failed", [CRASHED], 4),
        ("failed", [], 1),
        ("failed", [OK], 1),
        ("not_understood", [], 1),
        ("nothing_heard", [], 1),
        ("blocked", [DENIED], 3),
        ("cancelled", [], 1),
        ("tap", [], 1),
        ("unavailable", [], 4),
        ("something new", [], 1),
        (None, [], 1),
    ],
)
def test_sessions(outcome: str | None, results: list[dict[str, Any]], expected: int) -> None:
    assert of_session({"outcome": outcome, "results": results}) == expected


@pytest.mark.parametrize(("decision", "expected"), [("allow", 0), ("confirm", 5), ("deny", 3), ("new", 1)])
def test_explanations(decision: str, expected: int) -> None:
    assert of_explanation({"decision": decision}) == expected
