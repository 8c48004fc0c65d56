"""The one reading of an address that everybody gets: the user, the policy and the program that opens it.

Rules here: text is refused, never repaired; whatever passes is what the WHATWG URL Standard's serializer gives, and
parsing that again gives it again. Schemes in FORBIDDEN_SCHEMES open nothing whatever the configuration says.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from .chars import first_hidden, is_hidden, name

if TYPE_CHECKING:
    from collections.abc import Collection

DEFAULT_SCHEMES = frozenset({"http", "https", "mailto"})
# They run code, read local files, reach into a browser, or carry another address inside that nobody checks.
# fmt: off
FORBIDDEN_SCHEMES = frozenset({
    "about", "blob", "chrome", "chrome-extension", "data", "file", "filesystem", "jar", "javascript", "livescript",
    "mk", "moz-extension", "ms-its", "res", "resource", "vbscript", "view-source", "wyciwyg",
})
# fmt: on
MAX_URL_BYTES = 8 * 1024

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,31}):")
_SCHEME_NAME = re.compile(r"[a-z][a-z0-9+.-]{0,31}")
# The WHATWG parser gives these a host by guessing ("https:x", "http:///x"); other readers do not.
_WITH_HOST = frozenset({"http", "https", "ws", "wss", "ftp"})
_AUTHORITY = re.compile(r"//([^/?#]+)")
_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")
_ADDRESS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+~-]*@[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?")
_MAIL_FIELDS = frozenset({"subject", "body", "cc"})
_SMUGGLED_FIELD = re.compile(r"[&?;][A-Za-z-]+=")


class UrlError(ValueError):
    """An address that is not opened. `reason` is a short name, the message one sentence without the address."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class CanonicalUrl(msgspec.Struct, frozen=True):
    """A checked address.

    Attributes:
        href: the WHATWG serialization: ASCII, scheme and host in lower case, everything else percent-encoded.
        scheme: without the colon.
        host: with the port if it is not the scheme's own; empty for mailto.
    """

    href: str
    scheme: str
    host: str

    @property
    def display(self) -> str:
        """What a person is shown: the very address that is opened, so a foreign-script host is in punycode."""
        return self.href


def check_schemes(schemes: Collection[str]) -> frozenset[str]:
    """Check a configured list of schemes and return it as a set.

    Raises:
        ValueError: one is no scheme, or is forbidden for good.
    """
    for scheme in schemes:
        if not _SCHEME_NAME.fullmatch(scheme):
            raise ValueError(f"url_schemes: {scheme!r} is not the name of a URL scheme in lower case.")
        if scheme in FORBIDDEN_SCHEMES:
            raise ValueError(f"url_schemes: '{scheme}' can never be opened, because it runs code or reads local files.")
    return frozenset(schemes)


def canonical_url(text: str, schemes: Collection[str] = DEFAULT_SCHEMES) -> CanonicalUrl:
    """Read an address once, for good.

    Refused: more than 8 KiB; control, format, invisible and space characters anywhere; backslashes; a scheme that is
    not in `schemes` or is forbidden; http(s) without `//` and a host; a user name or password, even an empty one.

    And in mailto (RFC 6068) everything by which an address could do more than start a message to plain recipients:
    header fields other than one `subject`, `body` and `cc` each, which leaves out `bcc` and `attach`; control
    characters and `&field=` at any depth of encoding, for mail programs that decode twice or before they split; a
    fragment; recipients other than ASCII `name@host`.

    Raises:
        UrlError: it is refused, with the reason.
    """
    if len(text) > MAX_URL_BYTES:
        raise UrlError("too-long", f"The address is longer than {MAX_URL_BYTES} bytes.")
    hidden = " " if " " in text else first_hidden(text)
    if hidden is not None:
        raise UrlError("hidden-character", f"The address contains the character {name(hidden)}.")
    if "\\" in text:
        raise UrlError("backslash", "The address contains a backslash.")
    match = _SCHEME.match(text)
    if match is None:
        raise UrlError("no-scheme", "The address does not begin with a scheme such as https:.")
    scheme = match[1].lower()
    if scheme not in schemes or scheme in FORBIDDEN_SCHEMES:
        raise UrlError("scheme", f"Addresses of the scheme '{scheme}' are not opened.")
    authority = _AUTHORITY.match(text, match.end())
    if authority is not None and "@" in authority[1]:
        raise UrlError("credentials", "The address contains a user name or password.")
    if scheme in _WITH_HOST and authority is None:
        raise UrlError("no-host", f"An address of the scheme '{scheme}' needs // and a host.")
    return _parse(text, scheme)


def _parse(text: str, scheme: str) -> CanonicalUrl:
    from ada_url import URL  # noqa: PLC0415 - a C library that start-up does not need

    try:
        href = URL(text).href
    except ValueError:
        raise UrlError("not-a-url", "The address is not a valid URL.") from None
    if len(href) > MAX_URL_BYTES:
        raise UrlError("too-long", f"The address is longer than {MAX_URL_BYTES} bytes in its canonical form.")
    if not href.isascii() or (href != text and URL(href).href != href):
        raise UrlError("ambiguous", "Different programs would read the address differently.")
    # The serializer's output splits in one way only, so its parts are cut out here instead of asked for one by one.
    authority = _AUTHORITY.match(href, len(scheme) + 1)
    host = "" if authority is None else authority[1]
    if "@" in host:
        raise UrlError("credentials", "The address contains a user name or password.")
    if scheme in _WITH_HOST and not host.split(":")[0].strip("."):
        raise UrlError("no-host", "The address names no host.")
    if "xn--" in host:
        _check_punycode(host)
    if scheme == "mailto":
        _check_mailto(href.removeprefix("mailto:"))
    return CanonicalUrl(href, scheme, host)


def _check_punycode(host: str) -> None:
    """Refuse labels that look like punycode and are none: some parsers take them as they are, others not at all."""
    from ada_url import URL  # noqa: PLC0415 - as in `_parse`

    for label in host.split(":", maxsplit=1)[0].split("."):
        if not label.startswith("xn--"):
            continue
        try:
            letters = label.removeprefix("xn--").encode().decode("punycode")
            same = not letters.isascii() and URL(f"https://{letters}/").hostname == label
        except ValueError:
            same = False
        if not same:
            raise UrlError("ambiguous", "Different programs would read the address's host differently.")


def _check_mailto(rest: str) -> None:
    if "#" in rest:
        raise UrlError("mailto", "A mail address may not have a fragment.")
    recipients, _, search = rest.partition("?")
    _check_recipients(_decoded(recipients))
    seen: set[str] = set()
    for field in search.split("&") if search else ():
        key, _, value = field.partition("=")
        key = _decoded(key).lower()
        if key not in _MAIL_FIELDS or key in seen:
            raise UrlError("mailto", "A mail address may set subject, body and cc, each once, and nothing else.")
        seen.add(key)
        text = _decoded(value)
        if key == "cc":
            _check_recipients(text)


def _check_recipients(text: str) -> None:
    if not all(_ADDRESS.fullmatch(recipient) for recipient in text.split(",")):
        raise UrlError("mailto", "A mail address needs recipients of the form name@host.")


def _decoded(text: str) -> str:
    """Percent-decode once, and refuse what reads differently for a program that decodes more often or too early."""
    first: str | None = None
    while True:
        try:
            after = _ESCAPE.sub(lambda match: bytes.fromhex(match[1].decode()), text.encode()).decode()
        except UnicodeDecodeError:
            raise UrlError("mailto", "A mail address may not contain bytes that are not UTF-8.") from None
        if any(map(is_hidden, after)):
            raise UrlError("mailto", "A mail address may not contain control or invisible characters.")
        if _SMUGGLED_FIELD.search(after):
            raise UrlError("mailto", "A mail address may not contain an encoded header field.")
        first = after if first is None else first
        if after == text:
            return first
        text = after
