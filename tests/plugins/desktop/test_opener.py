from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utter_plugins.desktop.failure import Failure
from utter_plugins.desktop.opener import check_url, open_argv


@pytest.mark.parametrize(
    "url",
    [
        "https://www.youtube.com/",
        "http://localhost:8080/a?b={c}|d&e=%20#f'",
        "https://[::1]/",
        "mailto:someone@example.org?subject=a%20b",
        "HTTPS://example.org/",
    ],
)
def test_canonical_urls_pass_unchanged(url: str) -> None:
    assert open_argv(url, ["xdg-open"]) == ["xdg-open", url]


@pytest.mark.parametrize(
    "url",
    [
        "",
        "-h",
        "--help",
        "-https://example.org",
        "example.org",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "data:text/html,x",
        " https://example.org",
        "https:example.org",
        "https:///path",
        "https://?q",
        "https://#f",
        "https://exa mple.org/",
        "https://example.org/\n",
        "https://example.org/\x1b[2J",
        "https://bücher.example/",
        'https://example.org/"x',
        "mailto:a\nb",
    ],
)
def test_everything_else_is_refused(url: str) -> None:
    with pytest.raises(Failure):
        check_url(url)


@given(st.text())
def test_what_passes_is_one_printable_ascii_argument_with_an_allowed_scheme(url: str) -> None:
    try:
        argv = open_argv(url, ["opener"])
    except Failure:
        return
    assert argv == ["opener", url]
    assert url.isascii()
    assert url.isprintable()
    assert url.partition(":")[0].lower() in {"http", "https", "mailto"}
