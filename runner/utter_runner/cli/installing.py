"""`utter plugins install`, `update`, `remove` and `digest`: what is shown of a package, and who agrees to it.

Rules here: what a person agrees to is shown before, on stderr; where nobody can be asked, an option has to say it; what
`--yes` says was meant for what is usual, so that it does not stand for more permissions or for another signer. The
configuration is read and never written.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from utter_runner.cli.exits import Exit
from utter_runner.cli.guard import say, written
from utter_runner.cli.options import Json, guarded
from utter_runner.cli.text import document, harmless, sized
from utter_runner.operate.errors import Untrusted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from utter_runner.operate.packages import Demand, Offer
    from utter_runner.operate.places import Places

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Key = Annotated[
    str | None,
    typer.Option("--key", metavar="KEY", help="The minisign public key, or its file, that it must be signed with."),
]
Digest = Annotated[
    str | None,
    typer.Option(
        "--digest", metavar="SHA256", help="The digest that it must have, as `digest` prints it; asks nothing."
    ),
]
Widen = Annotated[
    bool, typer.Option("--accept-permissions", help="With --yes or --digest: also if it wants more than before.")
]


@guarded
def install(
    source: Annotated[str, typer.Argument(metavar="PATH", help="A package's directory, or an archive of it.")],
    yes: Yes = False,
    key: Key = None,
    digest: Digest = None,
    as_json: Json = False,
) -> Exit:
    """Install a plugin from a directory, a .tar (.gz, .bz2, .xz) or a .zip.

    It shows what the plugin is, who has signed it and what it asks for, and asks before it puts it in place. Nothing of
    it is run. It tells what to add to the configuration, and does not change that.
    """
    places = user_places()
    return _put(places, Path(source), _demand(key, digest), updates=None, yes=yes, widen=False, as_json=as_json)


@guarded
def update(
    what: Annotated[
        str, typer.Argument(metavar="ID|PATH", help="An installed plugin, or the package to update it with.")
    ],
    *,
    yes: Yes = False,
    accept_permissions: Widen = False,
    key: Key = None,
    digest: Digest = None,
    as_json: Json = False,
) -> Exit:
    """Put another version in the place of an installed plugin.

    With an id it is taken from where it was installed from. What is new is shown and asked about. With --yes or
    --digest an update that wants more permissions is refused, unless --accept-permissions is given.
    """
    from utter_runner.operate import lockfile  # noqa: PLC0415 - only these commands need it

    places = user_places()
    found = lockfile.read(places.lockfile).get(what)
    source, name = (Path(found.source), what) if found and found.source else (Path(what), "")
    demand = _demand(key, digest)
    return _put(places, source, demand, updates=name, yes=yes, widen=accept_permissions, as_json=as_json)


@guarded
def remove(
    plugin: Annotated[str, typer.Argument(metavar="ID", help="As it was installed.")],
    yes: Yes = False,
    as_json: Json = False,
) -> Exit:
    """Delete a plugin that was installed. Those that ship with the runner, and your own work elsewhere, stay."""
    from utter_runner.operate import packages  # noqa: PLC0415 - only these commands need it

    places = user_places()
    entry = packages.installed_entry(places, plugin)
    place = places.plugins / plugin
    tell([f"{plugin} {entry.version}, installed from {entry.source}, is deleted with everything in {place}."])
    ask(f"Remove {plugin}?", yes=yes)
    written(lambda: packages.remove(places, plugin, entry))
    if as_json:
        print(document({"plugin": plugin, "version": entry.version, "directory": str(place)}))
    else:
        print(harmless(f"Removed {plugin} {entry.version}."))
    if plugin in _configured():
        say(f"The configuration still has a [[plugin]] table for {plugin}: take it out, then: utter reload")
    return Exit.DONE


@guarded
def digest(
    source: Annotated[str, typer.Argument(metavar="PATH", help="A package's directory, or an archive of it.")],
    as_json: Json = False,
) -> Exit:
    """Print the digest of a package, which is the same for its directory and for every archive of it."""
    from utter_runner.operate import packages  # noqa: PLC0415 - only these commands need it

    found = written(lambda: packages.package_digest(Path(source)))
    print(document({"digest": found}) if as_json else found)
    return Exit.DONE


def user_places() -> Places:
    """Where this user's packages and the record are. Raises OperateError."""
    from utter_runner.operate.places import Places  # noqa: PLC0415 - only these commands need it

    return Places.of(os.environ)


def _demand(key: str | None, digest: str | None) -> Demand:
    from utter_runner.operate.packages import Demand, normal_digest  # noqa: PLC0415 - only these commands need it
    from utter_runner.operate.signatures import given_key  # noqa: PLC0415 - see above

    return Demand(given_key(key) if key else None, normal_digest(digest) if digest is not None else "")


def _put(
    places: Places, source: Path, demand: Demand, *, updates: str | None, yes: bool, widen: bool, as_json: bool
) -> Exit:
    return written(
        lambda: _put_in_place(places, source, demand, updates=updates, yes=yes, widen=widen, as_json=as_json)
    )


def _put_in_place(
    places: Places, source: Path, demand: Demand, *, updates: str | None, yes: bool, widen: bool, as_json: bool
) -> Exit:
    from utter_runner.operate.packages import offered  # noqa: PLC0415 - only these commands need it

    with offered(places, source, demand, updates=updates) as offer:
        name = offer.manifest.name
        place = places.plugins / name
        before = _manifest_text(place)
        if not offer.same:
            tell(_described(offer))
            _agree(offer, yes=yes, widen=widen)
            offer.accept()
        if as_json:
            print(document(_answer(offer, place)))
        elif offer.same:
            print(harmless(f"{name} {offer.entry.version} is what is installed already."))
        else:
            done = "Updated" if offer.installed else "Installed"
            print(harmless(f"{done} {name} {offer.entry.version} in {place}."))
            _what_next(name, only_code=_manifest_text(place) == before)
            if offer.manifest.models:
                print(f"\nIt needs files that it does not ship:\n\nutter models pull {name}")
        _warn_of_others(name, place)
    return Exit.DONE


def _manifest_text(place: Path) -> bytes:
    """What the runner compares of an installed package; nothing if there is none."""
    from utter_protocol.packages import MANIFEST_NAME  # noqa: PLC0415 - only these commands need it

    try:
        return (place / MANIFEST_NAME).read_bytes()
    except OSError:
        return b""


def _agree(offer: Offer, *, yes: bool, widen: bool) -> None:
    """Return if it is agreed to; see the rules above.

    Raises:
        Untrusted: it is not.
    """
    name = offer.manifest.name
    unasked = yes or offer.demanded
    if unasked and offer.installed and offer.new_permissions and not widen:
        raise Untrusted(
            f"The update of {name} asks for permissions that the installed version does not have: "
            f"{', '.join(offer.new_permissions)}. --accept-permissions agrees to them."
        )
    if yes and offer.other_signer and not offer.demanded:
        raise Untrusted(
            f"The installed version of {name} is signed, and the update is not signed with the same key: without --yes "
            "you are asked, and --digest agrees to this very package."
        )
    if yes and not offer.vouched and not offer.demanded:
        say(f"Warning: nobody whom you trust has signed {name}, and --yes agrees to whatever it is.")
    if not offer.demanded:
        ask(f"{'Update' if offer.installed else 'Install'} {name}?", yes=yes)


def ask(question: str, *, yes: bool) -> None:
    """Return if a person, or `--yes`, agrees.

    Raises:
        Untrusted: nobody does, or nobody can be asked.
    """
    from utter_runner.cli.ask import agreed  # noqa: PLC0415 - only these commands need it

    answer = True if yes else agreed(question)
    if answer is None:
        raise Untrusted("There is no terminal to ask on, so nothing is done: --yes agrees without a question.")
    if not answer:
        raise Untrusted("Nothing is done.")


def tell(lines: Sequence[str] | Iterator[str]) -> None:
    """Show lines that whoever agrees should have seen."""
    for line in lines:
        print(harmless(line), file=sys.stderr)


def _described(offer: Offer) -> Iterator[str]:
    """What a person should know of a package before it is installed."""
    from utter_protocol.manifest import permission_sentence  # noqa: PLC0415 - only these commands need it

    manifest, old, before = offer.manifest, offer.installed, offer.before
    yield f"{manifest.name} {f'{old.version} -> ' if old else ''}{manifest.version}, from {offer.entry.source}"
    if manifest.description:
        yield f"  {manifest.description}"
    yield f"  signed by   {_signed(offer)}"
    if offer.other_signer and old:
        yield f"              The installed version is signed with another key: {old.signed_by}"
    yield f"  digest      {offer.entry.digest}"
    yield f"  is          of the kind {manifest.kind}, and speaks protocol {manifest.protocol}, abi {manifest.abi}"
    yield f"  runs        {shlex.join(manifest.entrypoint)} ({manifest.runtime}, {manifest.transport})"
    if before and before.entrypoint != manifest.entrypoint:
        yield f"              The installed version runs {shlex.join(before.entrypoint)}"
    yield f"  provides    {_listed(manifest.provides, before.provides if before else None)}"
    yield f"  requires    {_listed(manifest.requires, before.requires if before else None)}"
    yield "  permissions" + ("" if manifest.permissions else " none")
    for name in offer.entry.permissions:
        new = " (new)" if old and name in offer.new_permissions else ""
        yield f"    {name}{new}: {permission_sentence(name)}"
    for name in old.permissions if old else ():
        if name not in offer.entry.permissions:
            yield f"    {name}: It is no longer asked for."
    for model in manifest.models:
        host = urlsplit(model.url).hostname or ""
        yield f"  needs       {model.name}, {sized(model.size)} from {host}, which `utter models pull` fetches"
    for warning in offer.warnings:
        yield f"  Warning: {warning}"


def _signed(offer: Offer) -> str:
    if offer.vouched:
        return offer.vouched
    if offer.stranger:
        return f"the key {offer.stranger}, which you do not trust: it could be anybody's"
    return "nobody; compare the digest with what the author says it is"


def _listed(names: Sequence[str], before: Sequence[str] | None) -> str:
    shown = (f"{name} (new)" if before is not None and name not in before else name for name in names)
    return ", ".join(shown) or "nothing"


def _answer(offer: Offer, place: Path) -> dict[str, Any]:
    entry = offer.entry
    return {
        "plugin": offer.manifest.name,
        "version": entry.version,
        "was": offer.installed.version if offer.installed else None,
        "changed": not offer.same,
        "directory": str(place),
        "digest": entry.digest,
        "signed_by": entry.signed_by or None,
        "permissions": entry.permissions,
        "models": [model.name for model in offer.manifest.models],
        "new_permissions": offer.new_permissions,
        "warnings": offer.warnings,
    }


def _configured() -> set[str]:
    """The ids that the usual configuration names; none if that cannot be read, which is another command's to say."""
    from utter_runner.cli.connection import UsageError  # noqa: PLC0415 - only these commands need it
    from utter_runner.cli.packages import configuration  # noqa: PLC0415 - see above

    try:
        return {entry.id for entry in configuration(None).plugin}
    except UsageError:
        return set()


def _what_next(name: str, *, only_code: bool) -> None:
    """Say how a runner takes it over; of a plugin whose manifest is the same as before a reload finds no change."""
    if name in _configured():
        # With a reload first, for there may have been another update that was not taken over.
        command = f"utter reload && utter plugins restart {name}" if only_code else "utter reload"
        print(f"The configuration names it. A runner that runs takes it over with:\n\n{command}")
        return
    print("\nThe runner starts it when its configuration says so. Add this, then run `utter reload`:\n")
    print(f'[[plugin]]\nid = "{name}"')


def _warn_of_others(name: str, place: Path) -> None:
    """Say so if the runner would take another package of this name."""
    from utter_runner.cli.connection import UsageError  # noqa: PLC0415 - see above
    from utter_runner.cli.packages import installed  # noqa: PLC0415 - only these commands need it

    try:
        path = next((one["path"] for one in installed(None) if one["id"] == name), "")
    except UsageError as error:
        say(f"Whether the runner finds it is not known: {error}")
        return
    if path and Path(path).parent != place:
        say(f"The runner takes {path} instead, which lies in a directory that it looks into before.")
