"""Checks run side by side: what one of them does keeps no other from its answer."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from utter_runner.operate.doctor.fake import FakeOutside
from utter_runner.operate.doctor.look import Look, Options
from utter_runner.operate.doctor.model import ok
from utter_runner.operate.doctor.registry import CHECKS, Once, check, run_all

if TYPE_CHECKING:
    from collections.abc import Iterator

    from utter_runner.operate.doctor.model import Finding

LOOK = Look(FakeOutside({"HOME": "/home/ada"}), Options(config="/etc/my runner.toml", socket="/s"))


def fine(_look: Look) -> Iterator[Finding]:
    yield ok("It is fine.")


def test_a_check_that_raises_is_a_finding_and_keeps_what_it_has_found() -> None:
    def odd(_look: Look) -> Iterator[Finding]:
        yield ok("So far.")
        raise RuntimeError("a secret")

    found = run_all(LOOK, {"a.odd": odd, "a.fine": fine})
    assert [(one.check, one.status) for one in found] == [("a.odd", "ok"), ("a.odd", "broken"), ("a.fine", "ok")]
    assert "RuntimeError" in found[1].what
    assert "secret" not in found[1].what


def test_a_check_that_hangs_is_a_finding_and_is_not_waited_for() -> None:
    go_on = threading.Event()

    def hangs(_look: Look) -> Iterator[Finding]:
        go_on.wait(60)
        yield ok("At last.")

    began = time.monotonic()
    try:
        found = run_all(LOOK, {"a.hangs": hangs, "a.fine": fine}, seconds=0.3)
    finally:
        go_on.set()
    assert time.monotonic() - began < 30
    assert [(one.check, one.status) for one in found] == [("a.hangs", "broken"), ("a.fine", "ok")]
    # On a machine that is only slow the same command would end in the same way.
    assert found[0].mend == "utter doctor --timeout 60 --config '/etc/my runner.toml' --socket /s"


@pytest.mark.parametrize(
    ("pace", "mend"), [(1.0, "utter doctor --timeout 60"), (20.0, "utter doctor --timeout 600"), (60.0, "Log in again")]
)
def test_more_time_is_more_than_there_was(pace: float, mend: str) -> None:
    outside = FakeOutside({"HOME": "/home/ada"})
    outside.pace = pace
    assert Look(outside, Options()).more_time().startswith(mend)


def test_checks_run_at_the_same_time() -> None:
    both = threading.Barrier(2, timeout=30)

    def meets(_look: Look) -> Iterator[Finding]:
        both.wait()
        yield ok("They met.")

    assert [one.status for one in run_all(LOOK, {"a.one": meets, "a.two": meets}, seconds=40)] == ["ok", "ok"]


def test_an_id_is_one_checks() -> None:
    name = next(iter(CHECKS))
    with pytest.raises(ValueError, match="two checks"):
        check(name)(fine)


def test_what_several_want_is_found_out_once() -> None:
    asked: list[int] = []
    once: Any = Once(lambda: asked.append(1) or len(asked))
    threads = [threading.Thread(target=once) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (once(), asked) == (1, [1])
