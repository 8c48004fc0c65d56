"""The settings of the llm plugin: what is taken, what is refused, where the key comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

import utter_plugins.llm
from utter_plugins.llm.settings import MAX_KEY, Settings, SettingsError, is_local, read_key
from utter_protocol.manifest import load_manifest
from utter_protocol.settings import wrong_settings

MANIFEST = Path(utter_plugins.llm.__file__).parent / "utter-plugin.toml"


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:8080/v1", "https://example.org", "http://[::1]:11434/v1/", "HTTP://localhost/v1"],
)
def test_addresses_that_are_taken(url: str) -> None:
    Settings(base_url=url).check()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://localhost/v1", "must begin with http"),
        ("file:///etc/passwd", "must begin with http"),
        ("unix:///run/x", "must begin with http"),
        ("localhost:8080", "must begin with http"),
        ("http://", "names no host"),
        ("http:///v1", "names no host"),
        ("http://a b/v1", "names no host"),
        ("http://a\x7f/v1", "names no host"),
        ("http://a:0/v1", "names no host"),
        ("http://a:99999/v1", "base_url: "),
        ("http://[::1/v1", "base_url: "),
        ("http://me:secret@host/v1", "must not hold a user"),
        ("http://me@host/v1", "must not hold a user"),
        ("http://host/v1?key=secret", "must not hold a query"),
        ("http://host/v1#x", "must not hold a query"),
    ],
)
def test_addresses_that_are_refused(url: str, why: str) -> None:
    with pytest.raises(SettingsError, match=why) as caught:
        Settings(base_url=url).check()
    assert "secret" not in str(caught.value)


def test_what_the_plugin_sets_cannot_be_set_for_it() -> None:
    Settings(request={"chat_template_kwargs": {"enable_thinking": False}}).check()
    with pytest.raises(SettingsError, match=r"^request: stream is what the plugin itself sets$"):
        Settings(request={"stream": True}).check()


def test_an_address_that_only_the_plugin_refuses_is_one_that_the_schema_cannot() -> None:
    schema = load_manifest(MANIFEST).config_schema
    assert wrong_settings(schema, {"base_url": "ftp://x"})
    assert wrong_settings(schema, {"base_url": "http://a:b@x"}) == []


def test_a_key_is_read_anew_each_time(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("sk-one\n")
    settings = Settings(api_key_file=str(path))
    settings.check()
    assert read_key(settings, {}) == "sk-one"
    path.write_text("  sk-two  ")
    assert read_key(settings, {}) == "sk-two"
    assert read_key(Settings(api_key_env="KEY"), {"KEY": "sk-three"}) == "sk-three"
    assert read_key(Settings(api_key="sk-four"), {}) == "sk-four"
    assert read_key(Settings(), {"KEY": "sk-three"}) == ""


@pytest.mark.parametrize("content", [b"", b"\n", b"two words", b"a\nb", "schlüssel".encode(), b"\xff", b"x" * 9000])
def test_what_is_no_key_is_not_told(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    with pytest.raises(SettingsError, match=str(path)) as caught:
        read_key(Settings(api_key_file=str(path)), {})
    assert "two" not in str(caught.value)
    assert str(MAX_KEY) in str(caught.value) or "is empty" in str(caught.value)


def test_a_key_in_the_settings_is_not_shown_and_is_a_key() -> None:
    assert "sk-four" not in repr(Settings(api_key="sk-four"))
    with pytest.raises(SettingsError, match="api_key holds no key") as caught:
        read_key(Settings(api_key="two words"), {})
    assert "two" not in str(caught.value)
    with pytest.raises(SettingsError, match="give one of them"):
        Settings(api_key="a", api_key_env="B").check()


def test_a_key_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot be read: No such file or directory"):
        read_key(Settings(api_key_file=str(tmp_path / "none")), {})
    with pytest.raises(SettingsError, match=r"the variable KEY is not set for the plugin; name it in pass_env"):
        read_key(Settings(api_key_env="KEY"), {})
    with pytest.raises(SettingsError, match="give one of them"):
        Settings(api_key_file="a", api_key_env="B").check()


def test_local_addresses() -> None:
    assert all(map(is_local, ["http://127.0.0.1/v1", "http://localhost:1/", "http://[::1]/", "http://127.1.2.3"]))
    assert not any(map(is_local, ["http://10.0.0.1/v1", "http://example.org", "http://127.0.0.1.example.org"]))
