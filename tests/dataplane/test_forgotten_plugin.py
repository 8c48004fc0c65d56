"""What a plugin held is gone when it is no longer configured, and it can begin anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from utter_protocol.errors import RpcError
from utter_runner.dataplane.blobfiles import BlobFiles, Bytes
from utter_runner.dataplane.books import Quotas
from utter_runner.dataplane.handles import PAGE, HandleStore
from utter_runner.rpc.deadlines import Deadlines

if TYPE_CHECKING:
    from pathlib import Path


async def test_it_lets_go_of_everything_and_nobody_else_does(tmp_path: Path) -> None:
    store = HandleStore(BlobFiles(tmp_path / "handles"), quotas=Quotas(), deadlines=Deadlines(), on_broken=print)
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            await store.wait_ready()
            gone, stays = store.plugin("gone"), store.plugin("stays")
            data = [b"small", b"x" * (2 * PAGE)]
            held = [await store.create(gone, "", Bytes(one), "user") for one in data]
            await store.create(stays, "", Bytes(data[1]), "user")
            store.drop_plugin("gone")
            again = store.plugin("gone")
            for one in held:
                for scope in (gone, again):
                    with pytest.raises(RpcError):
                        store.find(scope, "", one.handle)
            assert await store.read(store.find(stays, "", held[1].handle)) == data[1]
            assert store._books.total == len(data[1])
            # What was on its way for the one that is gone is nobody's, and the next one has a directory.
            with pytest.raises(RpcError):
                await store.create(gone, "", Bytes(b"late" * PAGE), "user")
            kept = await store.create(again, "", Bytes(data[0]), "user")
            assert await store.read(store.find(again, "", kept.handle)) == data[0]
            nursery.cancel_scope.cancel()
    finally:
        store.close()
