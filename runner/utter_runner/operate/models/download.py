"""Fetches one file over https into the store, and goes on where an earlier attempt ended.

Rules here: what a server says is believed only as far as the digest bears it out; nothing that it does makes this run
for ever, write more than the model's size, or leave https. Certificates are checked, and there is no way not to. Each
failure is a sentence that names the address, and the figure that was broken. httpx is loaded when something is fetched.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urljoin, urlsplit

from utter_runner.operate.errors import OperateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import httpx

    from utter_protocol.manifest import Model
    from utter_runner.operate.models.store import Store

NEEDED: Final = "Fetching models needs an extra: pip install 'utter-runner[models]'."
_OK, _PARTIAL, _UNSATISFIABLE = 200, 206, 416
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_AGAIN: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_RANGE: Final = re.compile(r"bytes ([0-9]{1,16})-([0-9]{1,16})/([0-9]{1,16}|\*)")
_SHOWN: Final = 200


class Bounds(NamedTuple):
    """How long a download may try (PROTOCOL.md, "Bounds"). Times are seconds, sizes bytes."""

    attempts: int = 6
    """How many attempts in a row may bring less than `progress`."""
    progress: int = 2**20
    first_pause: float = 0.5
    longest_pause: float = 30.0
    """Also the longest that a server may ask for with Retry-After."""
    connect: float = 15.0
    silence: float = 30.0
    """How long nothing may come; and in so much time at least `slowest` bytes a second."""
    slowest: int = 1024
    redirects: int = 5
    reserve: int = 64 * 2**20
    """What stays free on the disk."""


class DownloadError(OperateError):
    """A file could not be fetched. What has come of it is kept if `kept`; `unreachable` if another time may do."""

    def __init__(self, message: str, *, kept: bool = True, unreachable: bool = False) -> None:
        super().__init__(message)
        self.kept = kept
        self.unreachable = unreachable


class _Again(Exception):
    """This attempt failed, and the next one may not; `pause` is what the server asks for, in seconds."""

    def __init__(self, why: str, pause: float | None = None) -> None:
        super().__init__(why)
        self.pause = pause


class _Changed(Exception):
    """What has come so far is of no use with this server."""


def client_for(bounds: Bounds) -> httpx.Client:
    """What fetches files: it checks certificates, and takes proxies from the environment as httpx does.

    Raises:
        OperateError: httpx is not installed, or the environment names certificates or proxies that cannot be used.
    """
    try:
        import httpx  # noqa: PLC0415 - an extra, and 100 ms
    except ImportError:
        raise OperateError(NEEDED) from None
    timeout = httpx.Timeout(bounds.silence, connect=bounds.connect)
    try:
        return httpx.Client(
            timeout=timeout,
            follow_redirects=False,
            verify=True,
            trust_env=True,
            headers={"accept-encoding": "identity"},
        )
    except (OSError, ValueError, ImportError) as error:
        raise OperateError(
            f"The environment names certificates or a proxy that cannot be used (SSL_CERT_FILE, HTTPS_PROXY): {error}."
        ) from None


class Download:
    """One file on its way. `run` fetches it.

    Args:
        store: where it is put.
        model: what it should be.
        client: from `client_for`.
        progress: called with the bytes that are there, as they come.
        note: called with a sentence for each thing that went wrong and is tried again.
        finish: called while the store is held, as soon as the content has its place: gives it its names.
        bounds: when to give up.
        sleep: waits so many seconds.
        clock: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        store: Store,
        model: Model,
        client: httpx.Client,
        *,
        progress: Callable[[int], object] = lambda _have: None,
        note: Callable[[str], object] = lambda _text: None,
        finish: Callable[[], object] = lambda: None,
        bounds: Bounds = Bounds(),  # noqa: B008 - immutable
        sleep: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._model = model
        self._client = client
        self._progress = progress
        self._note = note
        self._finish = finish
        self._bounds = bounds
        self._sleep = sleep
        self._clock = clock
        self._have = 0
        self._digest: Any = None
        self._etag = ""
        self._ranges = True
        self._fresh = True
        """Whether all that is there came in one answer."""
        self._fd = -1

    def run(self) -> bool:
        """Have the file in the store; False if another process had put it there meanwhile.

        Raises:
            DownloadError: it cannot be fetched, or is not what it should be.
            OperateError: the disk is full or cannot be written.
        """
        path = self._store.root
        try:
            with self._store.part(self._model.sha256, lambda: self._note(_WAITING)) as self._fd:
                there = self._store.has(self._model)
                if not there:
                    self._begin()
                    self._collect()
                with self._store.held():
                    if there:
                        self._store.drop_part(self._model.sha256)
                    else:
                        self._store.accept(self._model.sha256, self._fd)
                    self._finish()
        except OSError as error:
            if error.errno in _NO_ROOM:
                raise DownloadError(
                    f"The disk with {path} is full: {self._have} of {self._model.size} bytes of {self._model.name} are "
                    "there. Make room; the same command goes on from there."
                ) from None
            raise OperateError(f"{error.filename or path} cannot be written: {error.strerror or error}.") from None
        return not there

    def _begin(self) -> None:
        size = os.fstat(self._fd).st_size
        if size > self._model.size:
            self._restart()
            return
        self._digest = hashlib.sha256()
        os.lseek(self._fd, 0, os.SEEK_SET)
        self._have = 0
        while data := os.read(self._fd, 2**20):
            self._digest.update(data)
            self._have += len(data)
        self._fresh = not self._have
        free = _free(self._store)
        rest = self._model.size - self._have
        if free is not None and free < rest + self._bounds.reserve:
            raise DownloadError(
                f"There is no room for {self._model.name} below {self._store.root}: {rest} bytes are "
                f"to come, {free} are free, and {self._bounds.reserve} of these stay free."
            )
        self._progress(self._have)

    def _restart(self) -> None:
        os.ftruncate(self._fd, 0)
        os.lseek(self._fd, 0, os.SEEK_SET)
        self._digest = hashlib.sha256()
        self._have = 0
        self._fresh = True
        self._progress(0)

    def _collect(self) -> None:
        """Fetch until everything is there and right."""
        failed = 0
        while True:
            before = self._have
            try:
                if self._have < self._model.size:
                    self._attempt()
                if self._is_right():
                    return
                # Parts of two versions of a file may have come together. A whole one decides.
                self._note("What has come in parts does not belong together: all of it is fetched again.")
                self._restart()
                self._ranges = False
            except _Changed as error:
                self._note(f"{error} All of it is fetched again.")
                self._restart()
                self._ranges = False
                pause = None
                why = str(error)
            except _Again as error:
                pause, why = error.pause, str(error)
            else:
                pause, why = None, "it does not stay the same"
            failed = 1 if self._have - before >= self._bounds.progress else failed + 1
            if failed >= self._bounds.attempts:
                raise DownloadError(
                    f"{self._model.name} could not be fetched from {_shown(self._model.url)}: {why} "
                    f"({self._have} of {self._model.size} bytes are there, {failed} attempts).",
                    unreachable=True,
                )
            wait = self._bounds.first_pause * 2 ** (failed - 1) if pause is None else pause
            wait = min(wait, self._bounds.longest_pause)
            self._note(f"{why[:1].upper()}{why[1:]}; {self._have} of {self._model.size} bytes are there. Again.")
            self._sleep(wait)

    def _is_right(self) -> bool:
        """Whether all is there and is what it should be; False if it came in parts that may not belong together.

        Raises:
            DownloadError: it is another file.
        """
        found = self._digest.hexdigest()
        if found == self._model.sha256:
            return True
        if not self._fresh:
            return False
        self._store.drop_part(self._model.sha256)
        raise DownloadError(
            f"What {_shown(self._model.url)} sends is not {self._model.name}: its sha256 is {found}, and it must be "
            f"{self._model.sha256}. It was deleted. Whoever made the plugin has to say which of the two is right.",
            kept=False,
        )

    def _attempt(self) -> None:
        """One request, and as much of its answer as comes.

        Raises:
            _Again, _Changed: it did not bring everything.
            DownloadError: nor would another one.
        """
        import httpx  # noqa: PLC0415 - see `client_for`

        before = self._have
        try:
            with self._answer() as response:
                self._begin_answer(response)
                self._take(response)
        except httpx.TimeoutException:
            raise _Again(f"nothing came in time ({self._bounds.silence:g} s)") from None
        except httpx.TransportError as error:
            _refuse_certificate(error, self._model)
            if self._have > before:
                raise _Again(_TOO_EARLY) from None
            raise _Again(f"the connection failed ({str(error)[:_SHOWN] or type(error).__name__})") from None
        if self._have < self._model.size:
            raise _Again(_TOO_EARLY)

    @contextmanager
    def _answer(self) -> Iterator[httpx.Response]:
        """The answer at the end of all redirects."""
        import httpx  # noqa: PLC0415 - see `client_for`

        url = self._model.url
        headers = {}
        if self._have and self._ranges:
            headers["range"] = f"bytes={self._have}-"
            if self._etag:
                headers["if-range"] = self._etag
        for _ in range(self._bounds.redirects + 1):
            try:
                request = self._client.build_request("GET", url, headers=headers)
            except (httpx.InvalidURL, ValueError, UnicodeError) as error:
                raise DownloadError(f"{_shown(url)} is no address that can be fetched: {error}.") from None
            response = self._client.send(request, stream=True)
            try:
                if response.status_code not in _REDIRECTS:
                    yield response
                    return
                url = _led_to(url, response.headers.get("location", ""), self._model)
            finally:
                response.close()
        raise DownloadError(
            f"{_shown(self._model.url)} leads from one address to the next more than {self._bounds.redirects} times."
        )

    def _begin_answer(self, response: httpx.Response) -> None:
        """Look at the head of an answer, and be where its body begins."""
        status, model = response.status_code, self._model
        if status == _UNSATISFIABLE and self._have:
            raise _Changed("The server has no more of it.")
        if status in _AGAIN:
            raise _Again(f"the server answered {status}", self._pause(response.headers.get("retry-after", "")))
        if status not in {_OK, _PARTIAL}:
            raise DownloadError(
                f"{_shown(model.url)} cannot be fetched for {model.name}: the server answered {status}."
            )
        coding = response.headers.get("content-encoding", "identity").lower()
        if coding not in {"", "identity"}:
            raise DownloadError(
                f"{_shown(model.url)} sends {model.name} encoded ({coding[:_SHOWN]!r}), which it was asked not to do."
            )
        start, total = 0, None
        if status == _PARTIAL:
            found = _RANGE.fullmatch(response.headers.get("content-range", ""))
            if found is None or int(found[1]) != self._have or not self._ranges:
                raise _Changed("The server sends another part than it was asked for.")
            start, total = int(found[1]), None if found[3] == "*" else int(found[3])
        length = response.headers.get("content-length", "")
        if total is None and length.isascii() and length.isdecimal():
            total = start + int(length[:20])
        if total is not None and total != model.size:
            raise DownloadError(
                f"{_shown(model.url)} is not {model.name}: that has {model.size} bytes, and the server has {total}. "
                "Nothing was taken of it."
            )
        if not start:
            self._restart()
        else:
            self._fresh = False
        etag = response.headers.get("etag", "")
        self._etag = etag if etag.startswith('"') else ""

    def _pause(self, retry_after: str) -> float | None:
        """How long the server wants to be left alone; dates are not worth a clock.

        Raises:
            DownloadError: longer than this waits.
        """
        if not (retry_after.isascii() and retry_after.isdecimal()):
            return None
        seconds = int(retry_after[:9])
        if seconds > self._bounds.longest_pause:
            raise DownloadError(
                f"The server of {_shown(self._model.url)} wants to be asked again in {seconds} s: try it then.",
                unreachable=True,
            )
        return float(seconds)

    def _take(self, response: httpx.Response) -> None:
        since, taken = self._clock(), 0
        for data in response.iter_raw():
            if self._have + len(data) > self._model.size:
                self._store.drop_part(self._model.sha256)
                raise DownloadError(
                    f"{_shown(self._model.url)} is not {self._model.name}: that has {self._model.size} bytes, and the "
                    f"server sends more, {self._have + len(data)} by now. It was stopped, and what came was deleted.",
                    kept=False,
                )
            view = memoryview(data)
            while view:
                view = view[os.write(self._fd, view) :]
            self._digest.update(data)
            self._have += len(data)
            self._progress(self._have)
            taken += len(data)
            now = self._clock()
            if now - since >= self._bounds.silence:
                if taken < self._bounds.slowest * (now - since) and self._have < self._model.size:
                    raise _Again(f"less than {self._bounds.slowest} bytes a second came")
                since, taken = now, 0


_TOO_EARLY: Final = "the connection ended too early"
_WAITING: Final = "Another process is fetching this file: waiting for it."


def _led_to(url: str, location: str, model: Model) -> str:
    """The address that a redirect leads to.

    Raises:
        DownloadError: it leads nowhere, or out of https.
    """
    try:
        target = urljoin(url, location)
        scheme, host = urlsplit(target).scheme, urlsplit(target).hostname
    except ValueError:
        target, scheme, host = location, "", None
    if not location or scheme != "https" or not host:
        raise DownloadError(
            f"{_shown(url)}, where {model.name} should be, leads to {_shown(target) if location else 'nothing'}; only "
            "https is followed."
        )
    return target


def _refuse_certificate(error: Exception, model: Model) -> None:
    """Raise what an untrusted certificate deserves: it will not become better by asking again."""
    import ssl  # noqa: PLC0415 - httpx has loaded it

    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            raise DownloadError(
                f"The server of {_shown(model.url)} could not prove that it is that one: {cause.verify_message}. "
                "Behind a proxy with certificates of its own, SSL_CERT_FILE names the file with those that you trust."
            ) from None
        cause = cause.__cause__ or cause.__context__


def _shown(url: str) -> str:
    """An address without what could be a secret in it: a user's name and password, and the query."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"[:_SHOWN]


def _free(store: Store) -> int | None:
    try:
        found = os.statvfs(store.root)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize
