"""A slice of `make fuzz` on every run, and what makes its failures reproducible."""

from __future__ import annotations

import logging

import pytest

from fuzz import generate, oracle, targets
from fuzz.campaign import Campaign, Failure
from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.messages import InvalidMessage, Message

SLICE = 20_000


@pytest.fixture(autouse=True)
def no_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the thousands of warnings about junk out of the report."""
    monkeypatch.setattr(logging.getLogger("utter_runner"), "level", logging.ERROR)


def quiet(_line: str) -> None:
    """Keep progress to itself."""


def test_a_slice() -> None:
    campaign = Campaign(20260101, 0, SLICE, quiet)
    campaign.run()
    outcomes = campaign.outcomes
    # Enough of everything gets through for the rest to mean something.
    assert min(outcomes[name] for name in ("request", "notification", "answer", "invalid", "no JSON")) > SLICE / 40
    assert outcomes["framing: in order"] > SLICE / 32 / 3
    assert len([name for name in outcomes if name.startswith("framing: ")]) == 11
    assert min(outcomes[f"streams through {way}"] for way in ("a peer", "the SDK")) > SLICE / 32 / 10


def test_frames_depend_on_nothing_but_seed_and_number() -> None:
    later = generate.frame(7, 640)
    data = generate.stream(7, 640)
    assert data.startswith(later)
    assert generate.pieces(7, 640, data) == generate.pieces(7, 640, data)
    assert b"".join(generate.pieces(7, 640, data)) == data
    assert generate.frame(8, 640) != later


def test_a_failure_says_how_to_make_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuzz.campaign.codec", _fails)
    with pytest.raises(Failure, match=r"ZeroDivisionError.*\n.*--seed 5 --start 96 --frames 32"):
        Campaign(5, 100, 32, quiet).run()


def _fails(_data: bytes, _pieces: list[bytes]) -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize("defect", ["takes what is wrong", "refuses what is right", "answers under another id"])
def test_the_oracle_sees_a_codec_that_is_wrong(monkeypatch: pytest.MonkeyPatch, defect: str) -> None:
    decode = oracle.decode_message

    def wrong(body: bytes) -> Message:
        try:
            message = decode(body)
        except InvalidMessage as invalid:
            if defect == "answers under another id":
                raise InvalidMessage(invalid.error, 4711) from None
            if defect == "takes what is wrong":
                return Message(jsonrpc="2.0", method="x")
            raise
        if defect == "refuses what is right":
            raise InvalidMessage(RpcError(ErrorCode.PARSE_ERROR, "no"), None)
        return message

    monkeypatch.setattr(oracle, "decode_message", wrong)
    with pytest.raises(Failure, match="the codec says"):
        Campaign(1, 0, 320, quiet).run()


def test_a_peer_that_answers_twice_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = targets.Peer._answered

    def never_done(peer: targets.Peer, request_id: int | str) -> bool:
        kept = dict(peer._incoming)
        try:
            return answered(peer, request_id)
        finally:
            peer._incoming = kept

    monkeypatch.setattr(targets.Peer, "_answered", never_done)
    with pytest.raises(Failure, match="too often"):
        Campaign(1, 0, 3200, quiet).run()
