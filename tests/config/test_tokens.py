"""The file of tokens: what of it is believed, and how a token is found in it."""

from __future__ import annotations

import hmac
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from utter_runner.config import tokens as room
from utter_runner.config.tokens import (
    MAX_BYTES,
    MAX_TOKENS,
    TokensError,
    matching,
    parse_tokens,
    read_tokens,
    store,
    tokens_path,
)

PATH = Path("/state/utter/tokens.toml")
NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
ENTRY = f'[[token]]\nname = "a"\ncreated = 2026-11-30T12:00:00Z\nsalt = "{"0" * 32}"\nhash = "{"0" * 64}"\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "utter" / "tokens.toml"
    made.parent.mkdir(mode=0o700)
    made.write_text(ENTRY)
    made.chmod(0o600)
    return made


def test_where_it_is() -> None:
    assert tokens_path({"XDG_STATE_HOME": "/s", "HOME": "/h"}) == Path("/s/utter/tokens.toml")
    assert tokens_path({"HOME": "/h"}) == Path("/h/.local/state/utter/tokens.toml")
    # A path that is not absolute is to be ignored.
    assert tokens_path({"XDG_STATE_HOME": "s", "HOME": "/h"}) == Path("/h/.local/state/utter/tokens.toml")


@settings(derandomize=True, database=None, deadline=None, max_examples=200)
@given(st.lists(st.text(), unique=True, max_size=5), st.text())
def test_a_token_matches_its_own_entry_and_no_other(tokens: list[str], offered: str) -> None:
    stored = [store(f"n{number}", token, NOW) for number, token in enumerate(tokens)]
    again = parse_tokens(tomli_w.dumps({"token": [{**_fields(one)} for one in stored]}).encode(), PATH)
    assert again == stored
    for one, token in zip(stored, tokens, strict=True):
        assert matching(again, token) == one
    assert (matching(again, offered) is not None) == (offered in tokens)


def _fields(one: room.StoredToken) -> dict[str, object]:
    return {name: getattr(one, name) for name in one.__struct_fields__}


def test_the_same_token_is_stored_differently_each_time() -> None:
    first, second = store("a", "same", NOW), store("a", "same", NOW)
    assert first.salt != second.salt
    assert first.hash != second.hash


def test_every_entry_is_compared_whichever_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = [store(f"n{number}", f"token {number}", NOW) for number in range(5)]
    compared: list[str] = []
    plain = hmac.compare_digest

    def noting(first: str, second: str) -> bool:
        compared.append(second)
        return plain(first, second)

    monkeypatch.setattr(room.hmac, "compare_digest", noting)
    for offered in ("token 0", "token 4", "none"):
        compared.clear()
        matching(stored, offered)
        assert compared == [one.hash for one in stored]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("token = 1", "Expected `array`"),
        ("tokens = []", "unknown field `tokens`"),
        (ENTRY.replace("salt", "salz"), "unknown field `salz`"),
        (ENTRY.replace("name", "# name"), "missing required field `name`"),
        (ENTRY.replace('"a"', '"A"'), "Expected `str` matching regex"),
        (ENTRY.replace("Z\n", "\n"), "timezone"),
        (ENTRY.replace("0" * 64, "0" * 63), "Expected `str` matching regex"),
        (ENTRY + ENTRY, "has a name twice; names are unique."),
        (ENTRY * (MAX_TOKENS + 1), f"Expected `array` of length <= {MAX_TOKENS}"),
        ("[[token", "it is no TOML in UTF-8"),
        ("a = " + "[" * 3000, "it is no TOML in UTF-8"),
    ],
)
def test_one_of_another_form_is_refused_as_a_whole(text: str, complaint: str) -> None:
    with pytest.raises(TokensError, match="tokens") as refused:
        parse_tokens(text.encode(), PATH)
    assert complaint in str(refused.value)


@settings(derandomize=True, database=None, deadline=None, max_examples=300)
@given(st.binary() | st.text().map(str.encode) | st.text(alphabet='[]token="a\n\\{},.0', max_size=60).map(str.encode))
def test_whatever_stands_there_is_read_or_refused(data: bytes) -> None:
    try:
        parse_tokens(data, PATH)
    except TokensError as error:
        assert str(PATH) in str(error)  # noqa: PT017 - either outcome is right


def test_a_file_of_mine_alone_is_read(file: Path) -> None:
    (one,) = read_tokens(file)
    assert (one.name, one.created) == ("a", NOW)
    file.unlink()
    assert read_tokens(file) == []
    file.parent.rmdir()
    assert read_tokens(file) == []


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o602, 0o620, 0o610, 0o666])
def test_one_that_others_may_use_is_refused(file: Path, mode: int) -> None:
    file.chmod(mode)
    with pytest.raises(TokensError, match=rf"open to other users \(mode {mode:04o}\)"):
        read_tokens(file)


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_one_that_others_may_replace_is_refused(file: Path, mode: int) -> None:
    file.parent.chmod(mode)
    with pytest.raises(TokensError, match=r"is writable by others .* chmod 700"):
        read_tokens(file)


def test_one_of_another_user_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = os.fstat

    def foreign(fd: int) -> os.stat_result:
        found = list(plain(fd))
        found[4] += 1
        return os.stat_result(found)

    with monkeypatch.context() as patch:
        patch.setattr(room.os, "fstat", foreign)
        with pytest.raises(TokensError, match="belongs to uid"):
            read_tokens(file)


def test_what_is_no_file_is_refused_without_waiting(file: Path, tmp_path: Path) -> None:
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TokensError, match="symbolic links"):
        read_tokens(file)
    file.unlink()
    os.mkfifo(file, 0o600)
    with pytest.raises(TokensError, match="not a regular file"):
        read_tokens(file)
    file.unlink()
    file.mkdir()
    with pytest.raises(TokensError, match="not a regular file"):
        read_tokens(file)


def test_one_that_is_too_long_is_refused(file: Path) -> None:
    file.write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(TokensError, match=f"longer than {MAX_BYTES} bytes"):
        read_tokens(file)
