"""Tokens that come and go while the runner serves."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import tomli_w
import trio

from support.clients import House, house, settle
from utter_protocol.errors import ErrorCode
from utter_runner.clients.server import REVOKED_SECONDS
from utter_runner.clients.tokens import TokenStore
from utter_runner.config import SocketConfig
from utter_runner.config.tokens import StoredToken, store

if TYPE_CHECKING:
    from trio.testing import MockClock

TOKEN = "correct horse battery staple"  # noqa: S105 - a test's token
NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


class File:
    """A file of tokens as `utter token` replaces it."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "state" / "tokens.toml"
        self.path.parent.mkdir(mode=0o700)
        self.problems: list[str] = []
        self.store = TokenStore(self.path, self.problems.append)
        self._tokens: dict[str, StoredToken] = {}

    def add(self, name: str, token: str) -> None:
        self._tokens[name] = store(name, token, NOW)
        self._write()

    def revoke(self, name: str) -> None:
        del self._tokens[name]
        self._write()

    def _write(self) -> None:
        new = self.path.with_suffix(".new")
        entries = [{key: getattr(one, key) for key in one.__struct_fields__} for one in self._tokens.values()]
        new.write_text(tomli_w.dumps({"token": entries}))
        new.chmod(0o600)
        new.replace(self.path)


@pytest.fixture
def file(tmp_path: Path) -> File:
    return File(tmp_path)


async def is_known(made: House, token: str) -> bool:
    client = await made.client()
    answer = await client.send("runner.auth", {"token": token})
    await client.until(lambda: answer in client.answers)
    await client.stream.aclose()
    return "result" in client.answers[answer]


@pytest.mark.parametrize("configured", [None, TOKEN])
async def test_a_token_counts_from_the_moment_it_is_stored_until_it_is_revoked(
    tmp_path: Path, file: File, configured: str | None
) -> None:
    async with house(tmp_path, socket=SocketConfig(token=configured), tokens=file.store) as made:
        assert not await is_known(made, "first")
        file.add("a", "first")
        assert await is_known(made, "first")
        file.add("b", "second")
        assert await is_known(made, "first")
        assert await is_known(made, "second")
        assert not await is_known(made, "firs")
        assert await is_known(made, TOKEN) == (configured is not None)
        file.revoke("a")
        assert not await is_known(made, "first")
        assert await is_known(made, "second")
        file.path.unlink()
        assert not await is_known(made, "second")
    assert file.problems == []


async def test_revoking_ends_the_connections_that_were_made_with_the_token(
    tmp_path: Path, file: File, autojump_clock: MockClock
) -> None:
    file.add("a", "first")
    file.add("b", "second")
    async with house(tmp_path, socket=SocketConfig(token=TOKEN), tokens=file.store) as made:
        first, again, second, configured = [await made.client() for _ in range(4)]
        for client, token in ((first, "first"), (again, "first"), (second, "second"), (configured, TOKEN)):
            await client.call("runner.auth", {"token": token})
        await trio.sleep(3 * REVOKED_SECONDS)
        file.revoke("a")
        # One of the same name that is made anew is another.
        file.add("a", "third")
        await trio.sleep(REVOKED_SECONDS + 0.1)
        await settle()
        assert first.closed.is_set()
        assert again.closed.is_set()
        assert (await second.call("runner.status"))["state"] == "ready"
        assert (await configured.call("runner.status"))["state"] == "ready"
        third = await made.client()
        await third.call("runner.auth", {"token": "third"})
        file.revoke("a")
        file.revoke("b")
        await trio.sleep(REVOKED_SECONDS + 0.1)
        await settle()
        assert third.closed.is_set()
        assert second.closed.is_set()
        await trio.sleep(1000)
        assert (await configured.call("runner.status"))["state"] == "ready"
        assert made.server.count == 1
        # Nobody is there for whom it would be looked.
        assert len(made.deadlines) == 0


async def test_a_file_that_cannot_be_believed_opens_nothing(
    tmp_path: Path, file: File, autojump_clock: MockClock
) -> None:
    file.add("a", "first")
    async with house(tmp_path, socket=SocketConfig(), tokens=file.store) as made:
        client = await made.client()
        await client.call("runner.auth", {"token": "first"})
        assert file.store.problem is None
        file.path.chmod(0o644)
        assert not await is_known(made, "first")
        await trio.sleep(REVOKED_SECONDS + 0.1)
        await settle()
        assert client.closed.is_set()
        (problem,) = file.problems
        assert "is open to other users (mode 0644)" in problem
        assert problem.endswith("Until then no token of it is right.")
        assert file.store.problem == problem
        file.path.chmod(0o600)
        assert await is_known(made, "first")
        file.path.parent.chmod(0o722)
        assert not await is_known(made, "first")
        file.path.parent.chmod(0o700)
        file.path.write_text("[[token]]\n")
        assert not await is_known(made, "first")
        assert len(file.problems) == 3
        assert "missing required field `name`" in file.problems[2]


async def test_who_is_let_in_without_a_token_stays_when_one_is_revoked(
    tmp_path: Path, file: File, autojump_clock: MockClock
) -> None:
    file.add("a", "first")
    async with house(tmp_path, tokens=file.store) as made:
        client = await made.client()
        assert await client.call("runner.auth", {"token": "first"}) == {"ok": True}
        file.revoke("a")
        await trio.sleep(3 * REVOKED_SECONDS)
        assert (await client.call("runner.status"))["state"] == "ready"


async def test_a_wrong_token_is_answered_alike_whatever_is_wrong(tmp_path: Path, file: File) -> None:
    file.add("a", "first")
    file.add("b", "x" * 200)
    async with house(tmp_path, socket=SocketConfig(token=TOKEN), tokens=file.store) as made:
        errors = set()
        for offered in (None, 1, "", "f", "firs", "first ", "x" * 199, TOKEN[:-1], "y" * 10_000):
            client = await made.client()
            error = await client.error("runner.auth", {"token": offered})
            errors.add((error.code, error.message, str(error.data)))
        assert errors == {(ErrorCode.NOT_PERMITTED, "the token is not right", "None")}
