"""The argument vector that opens a URL, after a second check of what the runner's policy let through.

Rules here: pure; the URL is passed on exactly as it came, as one argument, or not at all.
"""

from __future__ import annotations

from .failure import Failure

DEFAULT_OPENER = ("xdg-open",)
SCHEMES = ("http", "https", "mailto")

# xdg-open(1), "Exit codes".
EXIT_CODES = {
    1: "it did not accept the address",
    2: "a file that it needs does not exist",
    3: "no program that opens such pages is installed; install a browser or set the default one",
    4: "the browser reported an error",
}


def check_url(url: str) -> str:
    """The URL unchanged.

    The runner's policy has already parsed and canonicalised it; this is the second line of defence, for a runner that
    is older, newer or wrong. `xdg-open` knows no `--`, so that nothing may look like an option.

    Raises:
        Failure: another scheme than http, https and mailto, or characters that no canonical URL has.
    """
    scheme, colon, rest = url.partition(":")
    if url.startswith("-") or not colon or scheme.lower() not in SCHEMES:
        raise Failure("Only http, https and mailto addresses can be opened.")
    web = scheme.lower() != "mailto"
    # What WHATWG serialisation leaves over in no part of an address; mailto has an opaque path, which keeps more.
    unwanted = '"<> ' if web else ""
    if not url.isascii() or not url.isprintable() or any(char in unwanted for char in url):
        raise Failure("The address is not in its canonical form: it has characters that must be percent-encoded.")
    if web and (not rest.startswith("//") or rest[2:3] in {"", "/", "?", "#"}):
        raise Failure("The address names no host.")
    return url


def open_argv(url: str, opener: list[str]) -> list[str]:
    """The opener's argument vector with the URL as its last argument.

    Raises:
        Failure: see `check_url`.
    """
    return [*opener, check_url(url)]
