"""`utter models pull`: what is about to be fetched, a person's yes, and how far it is.

Rules here: people read stderr, and a bar only where it is a terminal; with `--json` each line of stdout is one event.
One file that cannot be fetched does not keep the others from coming.
"""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlsplit

from utter_runner.cli.exits import Exit
from utter_runner.cli.guard import say, written
from utter_runner.cli.text import document, harmless, sized
from utter_runner.operate.errors import OperateError, Untrusted
from utter_runner.operate.models.download import Bounds, Download, DownloadError, client_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import httpx

    from utter_protocol.manifest import Model
    from utter_runner.operate.models.store import Store
    from utter_runner.operate.models.wanted import Wanted

_BETWEEN_EVENTS_S: Final = 1.0


class _Told(Protocol):
    """Whoever is told how it goes."""

    def begun(self, model: Model) -> Callable[[int], object]: ...
    def note(self, model: Model, text: str) -> None: ...
    def done(self, model: Model, plugins: list[str]) -> None: ...
    def failed(self, model: Model, error: OperateError) -> None: ...


def fetch_all(store: Store, wanted: Sequence[Wanted], *, check: bool, yes: bool, as_json: bool) -> Exit:
    """Fetch what is missing of some models, each content once, and give it its names.

    Raises:
        Untrusted: it was not agreed to.
        OperateError: httpx is missing, or files cannot be written.
    """
    if check:
        written(lambda: _drop_damaged(store, wanted))
    # One content can be several plugins'.
    by_digest: dict[str, list[Wanted]] = {}
    for one in wanted:
        by_digest.setdefault(one.model.sha256, []).append(one)
    missing = [owners for owners in by_digest.values() if not store.has(owners[0].model)]
    if missing:
        # Before the question: whoever says yes wants it to begin.
        client = client_for(Bounds())
        with client:
            _agree(store, missing, yes=yes)
            with _telling(as_json=as_json) as told:
                code = _fetch(store, client, missing, told)
    else:
        code = Exit.DONE
    # Names for contents that were there already, such as another plugin's.
    for owners in by_digest.values():
        if store.has(owners[0].model):
            written(partial(_name_there, store, owners))
    if not missing:
        if as_json:
            print(document({"event": "nothing", "models": len(wanted)}))
        else:
            print("All of it is there." if wanted else "No plugin in the configuration needs a model.")
    elif code is Exit.DONE and not as_json:
        plugins = dict.fromkeys(one.plugin for owners in missing for one in owners if one.configured)
        for plugin in plugins:
            print(f"A runner that is running takes it with: utter plugins restart {plugin}")
    return code


def _fetch(store: Store, client: httpx.Client, missing: list[list[Wanted]], told: _Told) -> Exit:
    """Fetch each; the gravest of what went wrong is the exit code."""
    written(lambda: store.sweep({owners[0].model.sha256 for owners in missing}))
    code = Exit.DONE
    for owners in missing:
        model = owners[0].model
        try:
            Download(
                store,
                model,
                client,
                progress=told.begun(model),
                note=partial(told.note, model),
                finish=partial(_name, store, owners),
            ).run()
        except OperateError as error:
            told.failed(model, error)
            away = isinstance(error, DownloadError) and error.unreachable
            code = Exit.UNAVAILABLE if away and code is not Exit.FAILED else Exit.FAILED
        except KeyboardInterrupt:
            say(f"Interrupted. What has come of {model.name} is kept, and the same command goes on from there.")
            raise
        else:
            told.done(model, sorted({one.plugin for one in owners}))
    return code


def _name_there(store: Store, owners: Sequence[Wanted]) -> None:
    with store.held():
        # Another process may have deleted it meanwhile.
        if store.has(owners[0].model):
            _name(store, owners)


def _name(store: Store, owners: Sequence[Wanted]) -> None:
    for one in owners:
        store.give(one.plugin, one.model)


def _drop_damaged(store: Store, wanted: Sequence[Wanted]) -> None:
    for sha256, model in {one.model.sha256: one.model for one in wanted}.items():
        if store.has(model) and not store.is_whole(sha256):
            with store.held():
                store.drop_content(sha256)


def _agree(store: Store, missing: list[list[Wanted]], *, yes: bool) -> None:
    from utter_runner.cli.ask import agreed  # noqa: PLC0415 - only where there is something to fetch

    total = 0
    for owners in missing:
        model = owners[0].model
        begun = store.state(owners[0].plugin, model)
        rest = model.size - (begun.have if begun.state == "partial" else 0)
        total += rest
        plugins = ", ".join(sorted({one.plugin for one in owners}))
        part = f", {sized(rest)} of it to come" if rest != model.size else ""
        host = urlsplit(model.url).hostname or ""
        _line(f"{model.name} for {plugins}: {sized(model.size)} from {host}{part}")
    _line(f"{sized(total)} in {len(missing)} files, into {store.root}")
    answer = True if yes else agreed("Fetch them?")
    if answer is None:
        raise Untrusted("There is no terminal to ask on, so nothing is fetched: --yes agrees without a question.")
    if not answer:
        raise Untrusted("Nothing is fetched.")


def _line(text: str) -> None:
    print(harmless(text), file=sys.stderr, flush=True)


@contextmanager
def _telling(*, as_json: bool) -> Iterator[_Told]:
    if as_json:
        yield _Events()
    elif not sys.stderr.isatty():
        yield _Lines()
    else:
        from rich.progress import (  # noqa: PLC0415 - rich only for people
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        from utter_runner.cli.render import console  # noqa: PLC0415 - see above

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console(stderr=True)) as bars:
            yield _Bars(bars)


class _Lines:
    """Sentences, for a pipe or a log."""

    def begun(self, model: Model) -> Callable[[int], object]:
        _line(f"Fetching {model.name}.")
        return lambda _have: None

    def note(self, model: Model, text: str) -> None:
        _line(f"{model.name}: {text}")

    def done(self, model: Model, plugins: list[str]) -> None:
        print(harmless(f"{model.name} is there ({sized(model.size)}, for {', '.join(plugins)})."), flush=True)

    def failed(self, model: Model, error: OperateError) -> None:
        say(str(error) if model.name in str(error) else f"{model.name}: {error}")


class _Bars(_Lines):
    """A bar for each file.

    Args:
        bars: rich's, which is started.
    """

    def __init__(self, bars: Any) -> None:
        self._bars = bars

    def begun(self, model: Model) -> Callable[[int], object]:
        task = self._bars.add_task(harmless(model.name), total=model.size)
        return lambda have: self._bars.update(task, completed=have)

    def note(self, model: Model, text: str) -> None:
        self._bars.console.print(harmless(f"{model.name}: {text}"), markup=False, highlight=False)


class _Events:
    """One JSON document a line: `{event, name, sha256, ...}`; the event is begun, progress, note, done or failed."""

    def begun(self, model: Model) -> Callable[[int], object]:
        self._tell("begun", model, {"size": model.size})
        last = time.monotonic()

        def progress(have: int) -> None:
            nonlocal last
            if have == model.size or time.monotonic() - last >= _BETWEEN_EVENTS_S:
                last = time.monotonic()
                self._tell("progress", model, {"have": have, "size": model.size})

        return progress

    def note(self, model: Model, text: str) -> None:
        self._tell("note", model, {"message": text})

    def done(self, model: Model, plugins: list[str]) -> None:
        self._tell("done", model, {"plugins": plugins})

    def failed(self, model: Model, error: OperateError) -> None:
        self._tell("failed", model, {"message": str(error)})
        say(str(error))

    def _tell(self, event: str, model: Model, more: dict[str, Any]) -> None:
        print(document({"event": event, "name": model.name, "sha256": model.sha256, **more}), flush=True)
