"""Checks of the configuration: that it can be used, what it warns of, and that its secrets are there.

Rules here: every problem is told with its file and line; values are never shown.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from utter_runner.config import place_in
from utter_runner.config.secret import SecretError, find_secret, is_reference
from utter_runner.operate.doctor.model import Finding, broken, ok, warning
from utter_runner.operate.doctor.plugins import PLUGIN_PROBLEM
from utter_runner.operate.doctor.registry import check
from utter_runner.operate.doctor.words import place_of, remedy_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from utter_protocol.toml_lines import Key
    from utter_runner.operate.doctor.look import Look

_WHY = "The runner does not start with it, and one that runs keeps what it had read before."


@check("config.file")
def file(look: Look) -> Iterator[Finding]:
    """Whether the configuration can be used, and everything that is wrong with it."""
    for text in look.config_problems:
        if not os.path.lexists(look.config_path):
            yield broken(f"There is no configuration {look.config_path}.", _WHY, "utter config init")
        else:
            yield broken(text, _WHY, place_of(text) or look.edit("correct it"))
    if not look.config_problems:
        yield ok(f"{look.config_path} is in order.")


@check("config.start")
def start(look: Look) -> Iterator[Finding]:
    """What the daemon itself would refuse or warn of, plugins apart."""
    if look.config_problems:
        return
    said = look.config.warnings if look.status else look.trial()
    # What a runner that runs warns of, it says itself.
    known = look.status.get("warnings", ())
    found = [text for text in dict.fromkeys(said) if text not in known and not PLUGIN_PROBLEM.match(text)]
    for text in found:
        mend = remedy_in(text) or place_of(text) or look.edit("do what the message says")
        if text in look.config.warnings:
            yield warning(text, "It is allowed, and unwise.", mend)
        else:
            yield broken(text, _WHY, mend)
    if not found:
        yield ok("The daemon has no complaint about the configuration.")


@check("config.content")
def content(look: Look) -> Iterator[Finding]:
    """Whether what is said and shown is logged."""
    if look.status.get("content_logging", look.config.log.content):
        yield warning(
            "What is said and shown is written to the log.",
            "Whoever reads the log reads it, too.",
            look.edit("[log] content = false"),
        )
    else:
        yield ok("What is said and shown is not logged.")


@check("config.socket")
def socket(look: Look) -> Iterator[Finding]:
    """Whether `utter` looks for the socket where the configuration puts it."""
    configured = look.config.runner.socket_path
    if configured and look.options.socket is None:
        yield warning(
            f"The socket is {configured}, and `utter` looks in the usual place.",
            "`utter` does not read the configuration, so its commands do not find the runner.",
            f"export UTTER_SOCKET={configured}",
        )
    elif configured and look.options.socket != configured:
        yield warning(
            f"The configuration puts the socket at {configured}, and {look.options.socket} was asked.",
            "What is told here may be about another runner.",
            f"export UTTER_SOCKET={configured}",
        )
    else:
        yield ok("The socket is where `utter` looks for it.")


@check("config.token")
def token(look: Look) -> Iterator[Finding]:
    """Whether the token of `utter` can be used."""
    if problem := look.options.token_problem:
        yield broken(problem, "`utter` cannot say who it is.", remedy_in(problem) or "utter token new cli")
    else:
        yield ok("The token of `utter` can be used." if look.options.token else "`utter` uses no token.")


@check("config.secrets")
def secrets(look: Look) -> Iterator[Finding]:
    """Whether every reference to a secret leads to one."""
    references: dict[Key, str] = {
        ("plugin", at, "secret_env", name): reference
        for at, entry in enumerate(look.config.plugin)
        if entry.enabled
        for name, reference in entry.secret_env.items()
    }
    own = look.config.socket.token if look.config.socket else None
    if own is not None and is_reference(own):
        references["socket", "token"] = own
    missing = 0
    for key, reference in references.items():
        try:
            find_secret(reference, look.outside.environ, Path(look.config_path).absolute().parent)
        except SecretError as error:
            missing += 1
            place = place_in(look.config, key)
            yield broken(
                f"{place}: {key[-1]}: {error}",
                "What needs the secret is not started.",
                remedy_in(str(error)) or f"Edit {place}",
            )
    if references and not missing:
        yield ok(f"Secrets that were found: {len(references)}.")
    elif not references:
        yield ok("The configuration names no secrets.")
