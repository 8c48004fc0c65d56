"""A Secret Service on a bus of a test's own, with the items that it is given."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

from support.dbus import Service


class Item(NamedTuple):
    """One item."""

    attributes: dict[str, str]
    secret: bytes
    locked: bool = False


class SecretService:
    """Answers what is asked of org.freedesktop.secrets over a plain session.

    Attributes:
        asked: the methods that were called.
        open_sessions: how many sessions were opened and not closed.
    """

    def __init__(self, address: str, items: list[Item]) -> None:
        self.asked: list[str] = []
        self.open_sessions = 0
        self._items = items
        self._service = Service(address, "org.freedesktop.secrets", self._answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._service.__exit__()

    def _answer(self, interface: str, member: str, body: tuple[Any, ...]) -> tuple[str, Any] | str | None:
        self.asked.append(member)
        if member == "SearchItems":
            found = [item for item in self._items if body[0].items() <= item.attributes.items()]
            paths = [[self._path(item) for item in found if item.locked is locked] for locked in (False, True)]
            return "aoao", tuple(paths)
        if member == "OpenSession":
            assert body == ("plain", ("s", ""))
            self.open_sessions += 1
            return "vo", (("s", ""), "/org/freedesktop/secrets/session/s1")
        if member == "Close":
            self.open_sessions -= 1
            return "", ()
        assert (interface, member) == ("org.freedesktop.Secret.Item", "GetSecret")
        # Which item was meant is in the path, which a `Service` does not tell: tests have one that fits.
        return "(oayays)", ((body[0], b"", self._items[0].secret, "text/plain"),)

    def _path(self, item: Item) -> str:
        return f"/org/freedesktop/secrets/collection/login/{self._items.index(item)}"
