"""`utter models`: what plugins need besides their code, fetching it, checking it, and deleting it.

Rules here: nothing is fetched before it was shown, from where and how large, and agreed to; where nobody can be asked,
`--yes` has to say it. The configuration is read and never written.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from utter_runner.cli.exits import Exit
from utter_runner.cli.guard import say, written
from utter_runner.cli.options import Json, guarded
from utter_runner.cli.text import document, harmless, sized

if TYPE_CHECKING:
    from utter_runner.config import Config
    from utter_runner.operate.models.store import Store
    from utter_runner.operate.models.wanted import ModelState, Needs, Wanted

group = typer.Typer(
    help="Show, fetch, check and delete the files of plugins' models.", rich_markup_mode=None, no_args_is_help=True
)
ConfigFile = Annotated[
    str | None, typer.Option("--config", metavar="FILE", help="The runner's configuration, if not the usual one.")
]


@group.command("list")
@guarded
def list_models(config: ConfigFile = None, as_json: Json = False) -> Exit:
    """List the models that plugins need, and what is there of them.

    Sizes are looked at, not contents; `utter models verify` reads them. Below the table stands what no plugin needs.
    """
    from utter_runner.operate.models.wanted import model_states  # noqa: PLC0415 - only this command needs it

    loaded, store = _configuration(config), _store()
    states = model_states(loaded, os.environ, everything=True)
    unknown = _known(loaded).unknown
    # As `remove --unused` sees it: what a plugin about which nothing is known has, may be needed.
    named = {digest for (plugin, _), digest in store.links().items() if plugin in unknown}
    named |= {one.model.sha256 for one in states}
    spare = [one for one in store.contents() if one.sha256 not in named]
    if as_json:
        unused = [{"sha256": one.sha256, "size": one.size} for one in spare]
        print(document({"store": str(store.root), "models": [_row(one, states) for one in states], "unused": unused}))
        return Exit.DONE
    if states:
        from utter_runner.cli.render_models import print_models  # noqa: PLC0415 - rich only for people

        print_models([_row(one, states) for one in states])
    else:
        print("No plugin needs a model that is to be fetched.")
    if spare:
        print(
            f"{sized(sum(one.size for one in spare))} in {len(spare)} files is of no use: utter models remove --unused"
        )
    return Exit.DONE


def _row(state: ModelState, states: list[ModelState]) -> dict[str, Any]:
    model = state.model
    return {
        "plugin": state.plugin,
        "name": model.name,
        "size": model.size,
        "sha256": model.sha256,
        "url": model.url,
        "state": state.found.state,
        "have": state.found.have,
        "path": str(state.path),
        "configured": state.configured,
        "used_by": sorted({one.plugin for one in states if one.model.sha256 == model.sha256}),
    }


@group.command()
@guarded
def pull(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[PLUGIN|NAME]...", help="A plugin's id, or a model's name.")
    ] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Of all plugins on this machine.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Read what is there, and fetch anew what is damaged.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    config: ConfigFile = None,
    as_json: Json = False,
) -> Exit:
    """Fetch the models that are missing: of the plugins in the configuration, or of those that are named.

    It shows what is fetched from where and how large it is, and asks. What was begun is gone on with. A file gets its
    name only if its sha256 is the one that the plugin's manifest, or the configuration, says. With --json each line is
    an event.
    """
    from utter_runner.cli.pulling import fetch_all  # noqa: PLC0415 - only this command needs it
    from utter_runner.operate.models.wanted import chosen  # noqa: PLC0415 - see above

    store = _store()
    known = _known(_configuration(config))
    meant = chosen(known.wanted, names) if names else [one for one in known.wanted if everything or one.configured]
    return fetch_all(store, meant, check=check, yes=yes, as_json=as_json)


@group.command()
@guarded
def remove(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[PLUGIN|NAME]...", help="A plugin's id, or a model's name.")
    ] = None,
    *,
    unused: Annotated[bool, typer.Option("--unused", help="What no plugin on this machine needs.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also what a configured plugin needs.")] = False,
    config: ConfigFile = None,
    as_json: Json = False,
) -> Exit:
    """Delete models. What a plugin in the configuration needs stays, without --force."""
    from utter_runner.cli.connection import UsageError  # noqa: PLC0415 - only this command needs it
    from utter_runner.operate.models.removing import remove_models, remove_unused  # noqa: PLC0415 - see above
    from utter_runner.operate.models.wanted import chosen  # noqa: PLC0415 - see above

    if bool(names) == unused:
        raise UsageError("Name a plugin or a model, or say --unused.")
    store, known = _store(), _known(_configuration(config))
    done = written(lambda: remove_models(store, chosen(known.wanted, names), force=force)) if names else None
    done = done if done is not None else written(lambda: remove_unused(store, known))
    if as_json:
        print(document({"removed": [f"{plugin}/{name}" for plugin, name in done.names], "freed": done.freed}))
        return Exit.DONE
    for plugin, name in done.names:
        print(harmless(f"Removed {name} of {plugin}."))
    print(f"{sized(done.freed)} is free again.")
    return Exit.DONE


@group.command()
@guarded
def verify(config: ConfigFile = None, as_json: Json = False) -> Exit:
    """Read every file in the store and compare it with its digest. Exit code 1: one is damaged.

    No network is needed: a file is named by its digest.
    """
    from utter_runner.cli.busy import Busy  # noqa: PLC0415 - only this command needs it

    store = _store()
    with Busy("Reading"):
        looked = written(store.contents)
        damaged = [one.sha256 for one in looked if not written(partial(store.is_whole, one.sha256))]
    known = _known(_configuration(config))
    owners = {digest: [one for one in known.wanted if one.model.sha256 == digest] for digest in damaged}
    if as_json:
        rows = [
            {
                "sha256": digest,
                "plugins": sorted({one.plugin for one in owners[digest]}),
                "command": _mend(owners[digest]),
            }
            for digest in damaged
        ]
        print(document({"files": len(looked), "bytes": sum(one.size for one in looked), "damaged": rows}))
        return Exit.FAILED if damaged else Exit.DONE
    for digest in damaged:
        names = ", ".join(f"{one.model.name} of {one.plugin}" for one in owners[digest]) or "no plugin's"
        print(harmless(f"{store.root / 'sha256' / digest} ({names}) is damaged: {_mend(owners[digest])}"))
    print(f"{len(looked)} files, {sized(sum(one.size for one in looked))}: {len(damaged) or 'none'} damaged.")
    return Exit.FAILED if damaged else Exit.DONE


def _mend(owners: list[Wanted]) -> str:
    return f"utter models pull --check {owners[0].plugin}" if owners else "utter models remove --unused"


def _store() -> Store:
    from utter_runner.operate.models.store import Store  # noqa: PLC0415 - only these commands need it

    return Store.of(os.environ)


def _configuration(path: str | None) -> Config:
    from utter_runner.cli.packages import configuration  # noqa: PLC0415 - only these commands need it

    return configuration(path)


def _known(config: Config) -> Needs:
    """What plugins need; those about which that is not known are told of."""
    from utter_runner.operate.models.wanted import needs  # noqa: PLC0415 - only these commands need it

    known = needs(config, os.environ)
    for plugin, problem in known.unknown.items():
        say(f"What models the plugin {plugin} needs is not known: {problem}")
    return known
