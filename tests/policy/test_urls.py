"""Addresses: what passes, as what, and what does not."""

from __future__ import annotations

import pytest
from ada_url import URL
from hypothesis import example, given
from hypothesis import strategies as st

from support.policy import PROPERTY
from utter_runner.policy import UrlError, canonical_url
from utter_runner.policy.chars import is_hidden
from utter_runner.policy.urls import DEFAULT_SCHEMES, FORBIDDEN_SCHEMES, MAX_URL_BYTES, check_schemes

CANONICAL = [
    ("https://example.org", "https://example.org/", "example.org"),
    ("HTTPS://EXAMPLE.ORG:443/%7ea/../b?q=1#f", "https://example.org/b?q=1#f", "example.org"),
    ("http://example.org:8080/", "http://example.org:8080/", "example.org:8080"),
    ("https://bücher.example/ä", "https://xn--bcher-kva.example/%C3%A4", "xn--bcher-kva.example"),
    ("https://аpple.com/", "https://xn--pple-43d.com/", "xn--pple-43d.com"),  # noqa: RUF001 - a Cyrillic a is the point
    ("http://0x7f.1/", "http://127.0.0.1/", "127.0.0.1"),
    ("http://[::1]:3000/x", "http://[::1]:3000/x", "[::1]:3000"),
    ("https://example.org/a@b?c=@", "https://example.org/a@b?c=@", "example.org"),
    ("https://ex%61mple.org/", "https://example.org/", "example.org"),
    ("https://example.org/'\"<>`", "https://example.org/'%22%3C%3E%60", "example.org"),
    ("mailto:bob@example.org", "mailto:bob@example.org", ""),
    (
        "MAILTO:bob@example.org,al.ice+x@example.org?subject=Tom%20%26%20Jerry&body=100%25%20sure",
        "mailto:bob@example.org,al.ice+x@example.org?subject=Tom%20%26%20Jerry&body=100%25%20sure",
        "",
    ),
    ("mailto:bob@example.org?cc=eve@example.org", "mailto:bob@example.org?cc=eve@example.org", ""),
]

REFUSED = [
    ("", "no-scheme"),
    ("example.org", "no-scheme"),
    ("//example.org/", "no-scheme"),
    ("/etc/passwd", "no-scheme"),
    (":https://example.org", "no-scheme"),
    ("javascript:alert(1)", "scheme"),
    ("JavaScript:alert(1)", "scheme"),
    ("data:text/html,x", "scheme"),
    ("file:///etc/passwd", "scheme"),
    ("vbscript:x", "scheme"),
    ("view-source:https://example.org", "scheme"),
    ("blob:https://example.org/x", "scheme"),
    ("ftp://example.org/", "scheme"),
    ("tel:123", "scheme"),
    (" https://example.org", "hidden-character"),
    ("https://example.org ", "hidden-character"),
    ("https://exa mple.org", "hidden-character"),
    ("java\nscript:alert(1)", "hidden-character"),
    ("https://exa\tmple.org/", "hidden-character"),
    ("\x00https://example.org/", "hidden-character"),
    ("https://example.org/\x7f", "hidden-character"),
    ("https://example.org/\x85", "hidden-character"),
    ("https://example.org/\u00a0", "hidden-character"),
    ("https://exam\u00adple.org/", "hidden-character"),
    ("https://example.org/\u202egnp.exe", "hidden-character"),
    ("https://exam\u200bple.org/", "hidden-character"),
    ("https://exam\ufe0fple.org/", "hidden-character"),
    ("https://example.org/\ud800", "hidden-character"),
    ("https:\\\\example.org\\", "backslash"),
    ("https://example.org\\@evil.example/", "backslash"),
    ("https://example.org/?q=\\", "backslash"),
    ("https://user@example.org/", "credentials"),
    ("https://user:secret@example.org/", "credentials"),
    ("https://@example.org/", "credentials"),
    ("https://example.org@evil.example/", "credentials"),
    ("mailto://bob@example.org", "credentials"),
    ("https:example.org", "no-host"),
    ("https:/example.org", "no-host"),
    ("https:///example.org", "no-host"),
    ("https://", "no-host"),
    ("https://?x", "no-host"),
    ("https://./", "no-host"),
    ("https://%2e./", "no-host"),
    ("https://exa%00mple.org/", "not-a-url"),
    ("https://example.org:99999/", "not-a-url"),
    ("https://exa<mple.org/", "not-a-url"),
    ("https://[::1/", "not-a-url"),
    ("https://:80/", "not-a-url"),
    ("https://example.org/" + "a" * MAX_URL_BYTES, "too-long"),
    ("https://example.org/" + "ä" * 2000, "too-long"),
    ("mailto:", "mailto"),
    ("mailto:bob", "mailto"),
    ("mailto:?subject=x", "mailto"),
    ("mailto:bob@example.org?bcc=eve@example.org", "mailto"),
    ("mailto:bob@example.org?BCC=eve@example.org", "mailto"),
    ("mailto:bob@example.org?b%63c=eve@example.org", "mailto"),
    ("mailto:bob@example.org?subject=x&amp;bcc=eve@example.org", "mailto"),
    ("mailto:bob@example.org?attach=/etc/passwd", "mailto"),
    ("mailto:bob@example.org?attachment=/etc/passwd", "mailto"),
    ("mailto:bob@example.org?to=eve@example.org", "mailto"),
    ("mailto:bob@example.org?subject=a&subject=b", "mailto"),
    ("mailto:bob@example.org?subject", "mailto-ok"),
    ("mailto:bob@example.org?", "mailto-ok"),
    ("mailto:bob@example.org?subject=a%0d%0abcc:eve@example.org", "mailto"),
    ("mailto:bob@example.org?body=a%0Ab", "mailto"),
    ("mailto:bob@example.org?body=a%250Ab", "mailto"),
    ("mailto:bob@example.org?body=a%25250Ab", "mailto"),
    ("mailto:bob@example.org?body=a%26bcc=eve@example.org", "mailto"),
    ("mailto:bob@example.org?body=a%2526bcc%253Deve@example.org", "mailto"),
    ("mailto:bob%3Fbcc=eve@example.org", "mailto"),
    ("mailto:bob@example.org%0a", "mailto"),
    ("mailto:bob@example.org%2ceve@example.org", "mailto-ok"),
    ("mailto:bob@example.org;eve@example.org", "mailto"),
    ("mailto:-oProxy@example.org", "mailto"),
    ('mailto:"bob"@example.org', "mailto"),
    ("mailto:Bob<bob@example.org>", "mailto"),
    ("mailto:bob@bücher.example", "mailto"),
    ("mailto:bob@example.org#x", "mailto"),
    ("mailto:bob@example.org?subject=%ff", "mailto"),
    ("mailto:bob@example.org?subject=%E2%80%AEx", "mailto"),
    ("mailto:bob@example.org?cc=eve", "mailto"),
]


@pytest.mark.parametrize(("text", "href", "host"), CANONICAL)
def test_canonical(text: str, href: str, host: str) -> None:
    url = canonical_url(text)
    assert (url.href, url.host) == (href, host)
    assert url.scheme == href.partition(":")[0]
    assert url.display == href


@pytest.mark.parametrize(("text", "reason"), [row for row in REFUSED if row[1] != "mailto-ok"])
def test_refused(text: str, reason: str) -> None:
    with pytest.raises(UrlError) as caught:
        canonical_url(text)
    assert caught.value.reason == reason
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize("text", [row[0] for row in REFUSED if row[1] == "mailto-ok"])
def test_mail_addresses_without_content_pass(text: str) -> None:
    assert canonical_url(text).href == text


def test_schemes_are_configured_but_some_never_open() -> None:
    assert canonical_url("tel:+123", {"tel"}).href == "tel:+123"
    assert canonical_url("ftp://example.org", {"ftp"}).host == "example.org"
    for scheme in FORBIDDEN_SCHEMES:
        with pytest.raises(UrlError):
            canonical_url(f"{scheme}:x", {scheme})
        with pytest.raises(ValueError, match=f"'{scheme}' can never be opened"):
            check_schemes([scheme])
    with pytest.raises(UrlError):
        canonical_url("http://example.org/", {"https"})
    for name in ("HTTPS", "https:", "", "a b"):
        with pytest.raises(ValueError, match="is not the name of a URL scheme"):
            check_schemes([name])


PIECES = [
    *("https:", "HTTP:", "mailto:", "javascript:", "//", "/", "\\", "@", ":", "?", "#", ".", "..", "%", "%0a", "%00"),
    *("&", "=", ";", ",", "example.org", "bücher", "xn--", "127.1", "[::1]", "user", "subject", "bcc", "ß"),
]
texts = st.lists(st.sampled_from([*PIECES, " ", "\t", "\u202e"]), max_size=9).map("".join) | st.text(max_size=20)
starts = st.sampled_from(["https://a", "mailto:a@b.c?", "http://"])
likely = st.builds(lambda start, rest: start + rest, starts, texts)


@PROPERTY
@given(text=texts | likely)
@example(text="https://example.org/./x")
def test_what_passes_is_read_the_same_by_everybody(text: str) -> None:
    try:
        url = canonical_url(text)
    except UrlError:
        return
    again = URL(url.href)
    assert again.href == url.href
    assert again.protocol == f"{url.scheme}:"
    assert url.scheme in DEFAULT_SCHEMES
    assert (again.username, again.password) == ("", "")
    assert again.host == url.host
    assert bool(url.host) == (url.scheme != "mailto")
    assert url.href.isascii()
    assert len(url.href) <= MAX_URL_BYTES
    assert not any(char == " " or is_hidden(char) for char in url.href)
    assert canonical_url(url.href) == url


@pytest.mark.parametrize(
    ("readings", "reason"),
    [
        (["https://a.example/", "https://b.example/"], "ambiguous"),
        (["https://ä.example/", "https://ä.example/"], "ambiguous"),
        (["https://user@a.example/", "https://user@a.example/"], "credentials"),
    ],
)
def test_a_parser_that_contradicts_itself_is_not_believed(
    monkeypatch: pytest.MonkeyPatch, readings: list[str], reason: str
) -> None:
    class Reading:
        def __init__(self, _text: str) -> None:
            self.href = readings.pop(0)

    monkeypatch.setattr("ada_url.URL", Reading)
    with pytest.raises(UrlError) as caught:
        canonical_url("https://a.example")
    assert caught.value.reason == reason
