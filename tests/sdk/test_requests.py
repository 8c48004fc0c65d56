"""Tests of the table of requests: each is answered once, whoever is quicker."""

from __future__ import annotations

import pytest

from utter_protocol.errors import ErrorCode, RpcError
from utter_sdk.requests import MAX_IN_FLIGHT, Requests


def test_cancelled_while_waiting_it_never_starts() -> None:
    requests = Requests()
    request = requests.add(0)
    assert requests.cancel(0) == (True, [])
    assert requests.cancel(0) == (False, [])
    assert not requests.start(request)
    requests.refuse_duplicate(0)


def test_cancelled_while_running_its_callbacks_are_called_once() -> None:
    requests = Requests()
    request = requests.add("a")
    assert requests.start(request)
    called: list[int] = []
    requests.on_cancel(request, lambda: called.append(1))
    waiting, callbacks = requests.cancel("a")
    assert not waiting
    for callback in callbacks:
        callback()
    assert requests.cancel("a") == (False, [])
    requests.on_cancel(request, lambda: called.append(2))
    assert called == [1, 2]
    with pytest.raises(RpcError, match="id 'a' belongs to a request that is not answered yet"):
        requests.refuse_duplicate("a")
    requests.finish(request)
    requests.refuse_duplicate("a")
    assert requests.cancel("a") == (False, [])


def test_ending_cancels_all() -> None:
    requests = Requests()
    first, second = requests.add(1), requests.add(2)
    requests.start(first)
    requests.on_cancel(first, lambda: None)
    assert len(requests.cancel_all(waits=False)) == 1
    assert requests.cancel_all(waits=False) == []
    assert first.cancelled
    assert not requests.start(second)


def test_the_bound_is_named() -> None:
    requests = Requests()
    for n in range(MAX_IN_FLIGHT):
        requests.add(n)
    with pytest.raises(RpcError, match="max_in_flight") as caught:
        requests.add(-1)
    assert caught.value.code == ErrorCode.PLUGIN_FAILED
