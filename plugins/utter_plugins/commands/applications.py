"""Installed applications, from their desktop entries, and the names under which people ask for them.

Rules here: reads files, starts nothing; a broken entry is left out. Source: Desktop Entry Specification 1.5 and XDG
Base Directory Specification 0.8.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from utter_plugins.desktop.entries import MAX_ENTRY_BYTES, data_dirs, is_program, locale_suffixes, parse_group, unescape

from .spoken import normalise_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

MAX_APPLICATIONS = 2_000
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_MIN_ID_WORD = 3


@dataclass(frozen=True)
class Application:
    """An application that a menu would show.

    Attributes:
        app: its desktop file id without `.desktop`, as `launch_app` takes it.
        names: its name, in the user's language and untranslated.
        kinds: what it is ("Web Browser"), and its keywords.
    """

    app: str
    names: tuple[str, ...]
    kinds: tuple[str, ...] = ()


def installed(env: Mapping[str, str]) -> list[Application]:
    """The applications in the XDG data directories, sorted by id; the user's own entries hide the system's."""
    found: dict[str, Application | None] = {}
    for app, path in _files(env):
        if app not in found and len(found) < MAX_APPLICATIONS:
            found[app] = _read(app, path, env)
    return sorted((item for item in found.values() if item is not None), key=lambda item: item.app)


def folders(env: Mapping[str, str]) -> list[Path]:
    """The folders that are looked through."""
    return [base / "applications" for base in data_dirs(env)]


def spoken_names(applications: Iterable[Application]) -> tuple[dict[str, str], dict[str, str]]:
    """What people may say for an application.

    Returns:
        Names, and looser words (a kind, a keyword, the program in the id), each with its id. A looser word that
        fits several applications is left out.
    """
    items = list(applications)
    names = _unique((said, item.app) for item in items for name in item.names for said in spellings(name))
    taken = {normalise_text(said) for said in names}
    loose: dict[str, tuple[str, set[str]]] = {}
    for item in items:
        for word in (*item.kinds, *_id_words(item.app)):
            for said in spellings(word):
                loose.setdefault(normalise_text(said), (said, set()))[1].add(item.app)
    return names, {said: apps.pop() for key, (said, apps) in loose.items() if len(apps) == 1 and key not in taken}


def _unique(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The first of those that are said alike."""
    chosen: dict[str, tuple[str, str]] = {}
    for said, app in pairs:
        chosen.setdefault(normalise_text(said), (said, app))
    return dict(chosen.values())


def spellings(name: str) -> list[str]:
    """A written name as it is said: "LibreOffice" is also "libre office"."""
    return [form for form in dict.fromkeys((name.strip(), _CAMEL.sub(" ", name).strip())) if normalise_text(form)]


def _files(env: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    for base in folders(env):
        for folder, subfolders, files in os.walk(base):
            subfolders.sort()
            for file in sorted(files):
                if file.endswith(".desktop"):
                    path = base.joinpath(folder, file)
                    # A file in a subdirectory: the path's slashes become dashes.
                    yield "-".join(path.relative_to(base).parts).removesuffix(".desktop"), path


def _read(app: str, path: Path, env: Mapping[str, str]) -> Application | None:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_ENTRY_BYTES + 1)
        pairs = parse_group(data.decode())
    except (OSError, UnicodeDecodeError):
        return None
    shown = (
        len(data) <= MAX_ENTRY_BYTES
        and pairs.get("Type") == "Application"
        and pairs.get("NoDisplay") != "true"
        and pairs.get("Hidden") != "true"
        and _on_this_desktop(pairs, env)
    )
    if not shown or (pairs.get("TryExec") and not is_program(unescape(pairs["TryExec"]), env)):
        return None
    suffixes = locale_suffixes(env)
    names = _values(pairs, "Name", suffixes)
    kinds = _values(pairs, "GenericName", suffixes)
    keywords = [word for value in _values(pairs, "Keywords", suffixes) for word in value.split(";") if word.strip()]
    return Application(app, tuple(names), tuple(dict.fromkeys([*kinds, *keywords]))) if names else None


def _values(pairs: Mapping[str, str], key: str, suffixes: Iterable[str]) -> list[str]:
    """The best translation and the untranslated value."""
    found = [unescape(value) for suffix in suffixes if (value := pairs.get(key + suffix))]
    return list(dict.fromkeys([found[0], found[-1]])) if found else []


def _on_this_desktop(pairs: Mapping[str, str], env: Mapping[str, str]) -> bool:
    desktops = {name for name in env.get("XDG_CURRENT_DESKTOP", "").split(":") if name}
    if not desktops:
        return True
    only = {name for name in pairs.get("OnlyShowIn", "").split(";") if name}
    never = {name for name in pairs.get("NotShowIn", "").split(";") if name}
    return (not only or bool(only & desktops)) and not never & desktops


def _id_words(app: str) -> list[str]:
    """`org.gimp.GIMP` is asked for as "gimp"."""
    last = app.rpartition(".")[2]
    return [last] if len(last) >= _MIN_ID_WORD and last.isalpha() else []
