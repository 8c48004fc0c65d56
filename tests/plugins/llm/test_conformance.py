"""The llm plugin keeps to the protocol, with a server behind it that answers everything, and with none."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import utter_plugins.llm
from support.conformance import broken, check_shipped
from support.llm_server import LlmServer

if TYPE_CHECKING:
    from support.llm_server import Exchange

MANIFEST = Path(utter_plugins.llm.__file__).parent / "utter-plugin.toml"
LOOKED_AT = {"method.llm.complete", "method.llm.choose", "method.llm.choose-none", "stream.items", "stream.credit"}


def writes(exchange: Exchange) -> None:
    """A model that counts, all at once or word by word."""
    if not exchange.body.get("stream"):
        exchange.chat("1")
        return
    exchange.start_stream()
    for number in range(20):
        exchange.piece(f"{number} ")
    exchange.piece("20.", "stop")
    exchange.event("[DONE]")
    exchange.end_stream()


def test_it_keeps_to_the_protocol() -> None:
    with LlmServer(writes) as server:
        report = check_shipped(MANIFEST, base_url=server.base_url)
    assert broken(report) == set(), report.text()
    assert {one.check.id for one in report.outcomes if one.verdict == "holds"} >= LOOKED_AT


def test_it_keeps_to_the_protocol_without_a_server() -> None:
    with LlmServer(writes) as server:
        gone = server.base_url
    report = check_shipped(MANIFEST, base_url=gone)
    assert broken(report) == set(), report.text()
    (complete,) = (one for one in report.outcomes if one.check.id == "method.llm.complete")
    assert complete.verdict == "skipped"
    assert complete.detail.startswith("It could not do it here: ")
