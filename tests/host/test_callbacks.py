"""What plugins may ask of the runner, and who hears what they announce."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw

from support.host import AskingPeer
from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.messages import StreamItem
from utter_runner.host.callbacks import HostCallbacks
from utter_runner.supervision.fake import FakeInstance


@pytest.mark.parametrize("method", ["host.action", "host.confirm", "host.context", "runner.invoke", "runner.auth", ""])
def test_a_request_that_nobody_serves_is_refused_by_name(method: str) -> None:
    host = HostCallbacks()
    host.listen(method, lambda _instance, _params: pytest.fail("a request is no announcement"))
    with pytest.raises(RpcError) as error:
        host.on_request(FakeInstance("nosy"), None, 1, method, Raw(b'{"plugin":"somebody else"}'))
    assert error.value.code == ErrorCode.METHOD_NOT_FOUND
    # Known by the instance that it is, not by what it says.
    assert error.value.data == {"method": method, "plugin": "nosy"}


def test_requests_go_to_whoever_serves_them() -> None:
    host = HostCallbacks()
    asked: list[Any] = []
    peer = AskingPeer()

    def serve(instance: Any, its_peer: Any, request_id: int, params: Raw) -> None:
        asked.append((instance.id, its_peer, request_id, bytes(params)))

    host.serve("host.context", serve)
    host.on_request(FakeInstance("p"), peer, 7, "host.context", Raw(b"{}"))
    assert asked == [("p", peer, 7, b"{}")]
    with pytest.raises(RpcError):
        host.on_request(FakeInstance("p"), None, 8, "host.action", Raw(b"{}"))


def test_announcements_go_to_whoever_listens_for_them() -> None:
    host = HostCallbacks()
    heard: list[Any] = []
    host.listen("router.hints_changed", lambda instance, params: heard.append((instance.id, bytes(params))))
    router, other = FakeInstance("router"), FakeInstance("other")
    host.on_notification(router, "router.hints_changed", Raw(b"{}"))
    host.on_notification(other, "router.hints_changed", Raw(b'{"plugin":"router"}'))
    host.on_notification(router, "stt.partial", Raw(b"{}"))
    assert heard == [("router", b"{}"), ("other", b'{"plugin":"router"}')]


def test_the_last_who_listens_counts() -> None:
    host = HostCallbacks()
    heard: list[int] = []
    host.listen("x", lambda *_: heard.append(1))
    host.listen("x", lambda *_: heard.append(2))
    host.on_notification(FakeInstance("p"), "x", Raw(b"{}"))
    assert heard == [2]


def test_what_nobody_listens_for_by_name_goes_to_whoever_takes_the_rest() -> None:
    host = HostCallbacks()
    host.on_notification(FakeInstance("p"), "tick", Raw(b"{}"))
    heard: list[Any] = []
    host.listen("known", lambda _instance, _params: heard.append("known"))
    host.listen_else(lambda instance, method, params: heard.append((instance.id, method, bytes(params))))
    host.on_notification(FakeInstance("p"), "known", Raw(b"{}"))
    host.on_notification(FakeInstance("p"), "tick", Raw(b'{"n":1}'))
    assert heard == ["known", ("p", "tick", b'{"n":1}')]


def test_items_are_ignored_until_somebody_takes_them() -> None:
    host = HostCallbacks()
    taken: list[Any] = []
    item = StreamItem("s", 0, Raw(b"1"))
    host.on_item(FakeInstance("p"), "tick", item)
    host.on_item = lambda instance, method, one: taken.append((instance.id, method, one.seq))
    host.on_item(FakeInstance("p"), "tick", item)
    assert taken == [("p", "tick", 0)]
