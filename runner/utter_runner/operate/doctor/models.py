"""Checks of the files that plugins need besides their code.

Rules here: they are found where the plugins themselves find them; nothing is fetched or changed. Contents are read only
if that was asked for, and as much as the doctor has the time for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from utter_protocol.models import models_directory
from utter_runner.operate.doctor.model import Finding, broken, ok
from utter_runner.operate.doctor.registry import check
from utter_runner.operate.models.wanted import model_states

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from utter_runner.operate.doctor.look import Look
    from utter_runner.operate.models.wanted import ModelState

MOST_READ: Final = 2**30
"""Bytes of models of which the digests are compared; it takes some seconds. Of more, `utter models verify` does it."""


@check("models.files")
def files(look: Look) -> Iterator[Finding]:
    """Whether every model is there that a configured plugin needs, and is what its digest says."""
    environ = look.outside.environ
    states = model_states(look.config, environ)
    unread = ""
    read = look.options.thorough and sum(one.found.have for one in states) <= MOST_READ
    if read:
        try:
            states = model_states(look.config, environ, thorough=True)
        except OSError as error:
            unread = f"{error.filename} cannot be read: {error.strerror}."
    found = [*_wrong(states)]
    if unread:
        found.append((unread, f"ls -lR {models_directory(environ)}"))
    for what, mend in found:
        yield broken(what, "The plugin that needs it does not work, or not as it should.", mend)
    if not found and not states:
        yield ok("No configured plugin needs models that are to be fetched.")
    elif not found:
        looked = "their digests are right" if read else "their sizes are right"
        yield ok(f"Models that are needed: {len(states)}; all are there, and {looked}.")


def _wrong(states: Sequence[ModelState]) -> Iterator[tuple[str, str]]:
    """What is wrong with each model, and what mends it."""
    for plugin, model, _, found, path in states:
        name = f"The model {model.name} of {plugin}"
        if found.state == "missing":
            yield f"{name} has not been fetched.", f"utter models pull {plugin}"
        elif found.state == "partial" and found.have == model.size:
            yield f"{name} is there, and not under its name {path}.", f"utter models pull {plugin}"
        elif found.state == "partial":
            yield f"{name} has come in part: {found.have} of {model.size} bytes.", f"utter models pull {plugin}"
        elif found.have != model.size:
            what = f"{name} is damaged: it has {found.have} bytes and should have {model.size}."
            yield what, f"utter models pull --check {plugin}"
        elif found.state == "damaged":
            yield f"{name} is damaged: its sha256 is another than it should be.", f"utter models pull --check {plugin}"
