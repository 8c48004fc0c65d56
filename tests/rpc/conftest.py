"""What the tests of the peer share; the tools themselves are in support/rpc_tools.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.rpc_tools import Kind, Rig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    import trio


@pytest.fixture
def rig() -> Iterator[Rig]:
    """A reactor whose turns the test takes itself. What is logged as an error fails the test unless expected."""
    rig = Rig()
    yield rig
    rig.close()


@pytest.fixture
async def rpc_loop(rig: Rig, nursery: trio.Nursery) -> AsyncIterator[Rig]:
    """The same, with reactor and deadlines running."""
    nursery.start_soon(rig.reactor.run)
    nursery.start_soon(rig.deadlines.run)
    yield rig
    nursery.cancel_scope.cancel()


@pytest.fixture(params=["socket", "pipes"])
def kind(request: pytest.FixtureRequest) -> Kind:
    """Both transports: one socket, or two pipes."""
    kind: Kind = request.param
    return kind
