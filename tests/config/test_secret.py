"""References to secrets: what they lead to, and what is said when they lead nowhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.dbus import PrivateBus
from support.secret_service import Item, SecretService
from utter_runner.config import ConfigError, load_config, parse_config, with_token
from utter_runner.config.secret import MAX_SECRET, SecretError, find_secret, is_reference

CANARY = "canary-sk-4711-hunter2"


def write(path: Path, data: bytes = CANARY.encode() + b"\n", mode: int = 0o600) -> Path:
    path.write_bytes(data)
    path.chmod(mode)
    return path


def why(reference: str, environ: dict[str, str] | None = None, base: Path = Path("/nowhere")) -> str:
    with pytest.raises(SecretError) as error:
        find_secret(reference, environ or {}, base)
    assert CANARY not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("text", ["file:x", "env:X", "secret:a=b", "file:/x\ny"])
def test_what_is_a_reference(text: str) -> None:
    assert is_reference(text)


@pytest.mark.parametrize("text", ["", "file:", "File:x", "sk-1234", "xfile:x", "env", "https://x", " file:x"])
def test_what_is_none(text: str) -> None:
    assert not is_reference(text)


@pytest.mark.parametrize("mode", [0o600, 0o400])
@pytest.mark.parametrize("data", [CANARY.encode(), CANARY.encode() + b"\n", CANARY.encode() + b"\r\n"])
def test_a_file_of_the_user_s_alone_is_read(tmp_path: Path, mode: int, data: bytes) -> None:
    path = write(tmp_path / "key", data, mode)
    assert find_secret(f"file:{path}", {}, Path("/nowhere")) == CANARY
    # A relative path counts from the configuration's directory, wherever the runner was started.
    assert find_secret("file:key", {}, tmp_path) == CANARY


def test_a_link_to_such_a_file_is_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(write(tmp_path / "key"))
    assert find_secret("file:link", {}, tmp_path) == CANARY


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610])
def test_a_file_that_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = write(tmp_path / "key", mode=mode)
    said = why("file:key", base=tmp_path)
    assert said == f"The secret's file {path} can be used by other users: run chmod 600 {path}"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "key")
    os.chown(path, 12345, 12345)
    assert why("file:key", base=tmp_path) == f"The secret's file {path} belongs to another user."


def test_what_is_no_plain_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "directory").mkdir(0o700)
    assert "is not a regular file" in why("file:pipe", base=tmp_path)
    assert "is not a regular file" in why("file:directory", base=tmp_path)
    assert why("file:nothing", base=tmp_path) == "The secret's file nothing cannot be read: No such file or directory."
    assert "cannot be read" in why("file:\0", base=tmp_path)
    assert "cannot be read" in why("file:~nobody-of-this-name/x", base=tmp_path)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is empty."),
        (b"\n", "is empty."),
        (b"x" * (MAX_SECRET + 1), "holds more than max_secret (4096) bytes."),
        (CANARY.encode() + b"\nmore\n", "holds more than one line, or control characters."),
        (CANARY.encode() + b"\x1b[2J", "holds more than one line, or control characters."),
        (CANARY.encode() + b"\xff", "does not hold text in UTF-8."),
    ],
)
def test_what_is_no_secret_is_refused_without_showing_it(tmp_path: Path, data: bytes, said: str) -> None:
    path = write(tmp_path / "key", data)
    assert why("file:key", base=tmp_path) == f"The secret's file {path} {said}"


def test_the_longest_secret_is_taken(tmp_path: Path) -> None:
    write(tmp_path / "key", b"x" * MAX_SECRET + b"\n")
    assert len(find_secret("file:key", {}, tmp_path)) == MAX_SECRET


def test_a_variable_of_the_runner_s_is_taken() -> None:
    assert find_secret("env:KEY", {"KEY": CANARY}, Path()) == CANARY
    assert why("env:KEY", {"OTHER": CANARY}) == "The environment variable KEY is not set for the runner."
    assert why("env:a b") == '"env:" must be followed by the name of an environment variable.'


@given(text=st.text())
def test_whatever_is_given_as_a_reference_there_is_an_answer(text: str) -> None:
    # No bus, no variables: nothing but a file could be found.
    if not is_reference(text):
        with pytest.raises(SecretError):
            find_secret(text, {}, Path("/nowhere"))
    elif not text.startswith("file:"):
        why(text)


# ---- the Secret Service, on a real bus


def test_the_secret_service_is_asked_for_the_one_item_that_fits(tmp_path: Path) -> None:
    items = [
        Item({"service": "llm", "user": "me"}, CANARY.encode()),
        Item({"service": "llm", "user": "you"}, b"another"),
    ]
    with PrivateBus(tmp_path) as bus, SecretService(bus.address, items) as service:
        environ = {"DBUS_SESSION_BUS_ADDRESS": bus.address}
        assert find_secret("secret:service=llm,user=me", environ, Path()) == CANARY
        assert service.open_sessions == 0
        said = why("secret:service=llm", environ)
        assert said == "The Secret Service has several items with service=llm; name more of their attributes."
        assert why("secret:service=x", environ) == "The Secret Service has no item with service=x."


def test_what_is_locked_is_said_so_and_not_unlocked(tmp_path: Path) -> None:
    items = [Item({"service": "llm"}, CANARY.encode(), locked=True)]
    with PrivateBus(tmp_path) as bus, SecretService(bus.address, items) as service:
        said = why("secret:service=llm", {"DBUS_SESSION_BUS_ADDRESS": bus.address})
        assert said == "The Secret Service's item with service=llm is locked. Unlock it, then start the runner."
        assert service.asked == ["SearchItems"]


def test_a_bus_without_the_service_and_no_bus_are_said_so(tmp_path: Path) -> None:
    with PrivateBus(tmp_path) as bus:
        said = why("secret:a=b", {"DBUS_SESSION_BUS_ADDRESS": bus.address})
        assert said == "The Secret Service refused SearchItems, or there is none on the session bus."
    assert why("secret:a=b").startswith("There is no session bus")
    assert "cannot be reached" in why("secret:a=b", {"DBUS_SESSION_BUS_ADDRESS": f"unix:path={tmp_path}/no"})
    assert "cannot be reached" in why("secret:a=b", {"XDG_RUNTIME_DIR": str(tmp_path)})
    assert "cannot be reached" in why("secret:a=b", {"DBUS_SESSION_BUS_ADDRESS": "nonsense"})


@pytest.mark.parametrize("text", ["a", "=b", "a=b,", "a=b,a=c", ","])
def test_attributes_that_are_none_are_said_so(text: str) -> None:
    assert why(f"secret:{text}").startswith('"secret:" must be followed by ATTRIBUTE=VALUE')


# ---- the socket's token


def test_the_token_may_be_a_reference(tmp_path: Path) -> None:
    config = tmp_path / "runner.toml"
    config.write_text('[socket]\ntoken = "file:token"\n')
    config.chmod(0o644)
    write(tmp_path / "token")
    loaded = load_config(config)
    # The file holds no secret, whoever reads it.
    assert loaded.warnings == ()
    found = with_token(loaded, {})
    assert found.socket is not None
    assert found.socket.token == CANARY
    assert CANARY not in repr(found)


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("env:TOKEN", "2: [socket] token: It has less than 16 characters."),
        ("env:NONE", "2: [socket] token: The environment variable NONE is not set for the runner."),
    ],
)
def test_a_token_that_cannot_be_had_is_an_error_with_its_line(tmp_path: Path, reference: str, said: str) -> None:
    config = tmp_path / "runner.toml"
    config.write_text(f'[socket]\ntoken = "{reference}"\n')
    with pytest.raises(ConfigError) as error:
        with_token(load_config(config), {"TOKEN": "short"})
    assert error.value.problems == (f"{config}:{said}",)


def test_a_token_that_is_given_is_left_as_it_is() -> None:
    config = parse_config(f'[socket]\ntoken = "{CANARY}"')
    assert with_token(config, {}) is config
    assert with_token(parse_config(""), {}) == parse_config("", "config.toml")


# ---- what may hold a secret is not shown


@pytest.mark.parametrize(
    "text",
    [
        "[socket]\ntoken = '{}'\nzzz = 1",
        "[socket]\ntoken = ['{}']",
        "[socket]\ntoken = {{ x = '{}' }}",
        "[socket]\ntokens = '{}'",
        "[socket]\ntoken = {}",
        "[socket]\ntoken = '{}",
        "[socket]\ntoken = '{}' '{}'",
        "socket = '{}'",
        "[[plugin]]\nid = 'ab'\nenv = '{}'",
        "[[plugin]]\nid = 'ab'\nenv = {{ A = ['{}'] }}",
        "[[plugin]]\nid = 'ab'\nsecret_env = '{}'",
        "[[plugin]]\nid = 'ab'\nsecret_env = {{ A = '{}' }}",
        "[[plugin]]\nid = 'ab'\nsettings = '{}'",
        "[[plugin]]\nid = 'ab'\napi_key = '{}'",
        "[[plugin]]\nid = 'ab'\nenv = {{ A = '{}' }}\nsecret_env = {{ A = 'env:X' }}",
    ],
)
def test_no_message_about_a_wrong_file_shows_a_secret(text: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_config(text.format(CANARY, CANARY))
    assert CANARY not in str(error.value)
    assert CANARY not in repr(error.value)


def test_no_repr_shows_a_secret() -> None:
    text = f"""
[socket]
token = "{CANARY}"
[[plugin]]
id = "ab"
env = {{ A = "{CANARY}" }}
secret_env = {{ B = "env:B" }}
settings = {{ key = "{CANARY}", list = ["{CANARY}"] }}
"""
    shown = repr(parse_config(text))
    assert CANARY not in shown
    assert "env={'A': '...'}" in shown
    assert "secret_env={'B': '...'}" in shown
    assert "token='...'" in shown
