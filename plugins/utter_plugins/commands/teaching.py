"""What the router is taught: the shipped sentences, the user's phrase files, what is installed.

Rules here: a user's file that cannot be taken is left out, with a problem that says why; it never keeps the others, or
the shipped sentences, from working. A file that was taken once keeps its last good content while it is broken.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from utter_protocol.methods import Candidate

from .applications import folders, installed, spoken_names
from .phrases import Language, PhraseError, TextList, WebAddress, read_file, read_table
from .router import Router

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .applications import Application
    from .phrases import SiteTable, SlotList

_HERE = Path(__file__).parent


class Settings(msgspec.Struct, forbid_unknown_fields=True):
    """The plugin's settings.

    `phrases` names one phrase file or several; without it, `phrases.toml` in the runner's configuration folder is read
    if it is there. `phrase`, `site` and `lists` are what such a file holds, given inline. With `use_llm` a language
    model is asked which phrase was meant when none is near enough: its choice counts from `llm_min_probability` on, and
    if it comes within `llm_timeout_ms`.
    """

    phrases: str | list[str] | None = None
    phrase: list[dict[str, Any]] = []
    site: list[dict[str, Any]] = []
    lists: dict[str, Any] = {}
    use_llm: bool = False
    llm_min_probability: Annotated[float, Meta(ge=0, le=1)] = 0.6
    llm_timeout_ms: Annotated[int, Meta(ge=100, le=20_000)] = 3_000


@dataclass(frozen=True)
class Taught:
    """A router, and what else follows from what was taught.

    Attributes:
        router: plans and hints.
        candidates: things that may be picked by id.
        problems: sentences for the user; empty when all is well.
    """

    router: Router
    candidates: tuple[Candidate, ...]
    problems: tuple[str, ...] = ()


@dataclass
class Teacher:
    """Reads everything, as often as it is asked.

    Args:
        settings: the plugin's.
        env: the environment that names the user's folders.
    """

    settings: Settings
    env: Mapping[str, str]
    _good: dict[Path, Language] = field(default_factory=dict)

    @property
    def files(self) -> list[Path]:
        """The user's phrase files."""
        named = self.settings.phrases
        if named is None:
            return [self._config_folder() / "phrases.toml"]
        return [self._path(name) for name in ([named] if isinstance(named, str) else named)]

    @property
    def folders(self) -> list[Path]:
        """The folders with desktop entries."""
        return folders(self.env)

    def teach(self) -> Taught:
        """Read everything and build a router."""
        problems: list[str] = []
        builtin = read_file(_HERE / "builtin.toml", own=False)
        applications = installed(self.env)
        own = self._own(problems)
        sites = [*(site for language in own for site in language.sites), *read_file(_HERE / "sites.toml").sites]
        shipped_lists = {**builtin.lists, **_known_things(applications, sites)}
        taken: list[Language] = []
        own_lists: dict[str, SlotList] = dict(shipped_lists)
        for language in own:
            lists = {**own_lists, **language.lists}
            try:
                Router(language.phrases, lists)
            except PhraseError as error:
                problems.append(str(error))
                continue
            own_lists = lists
            taken.append(language)
        phrases = [phrase for language in taken for phrase in language.phrases]
        router = Router(phrases, own_lists, builtin.phrases, shipped_lists)
        return Taught(router, _candidates(applications, sites), tuple(problems))

    def _own(self, problems: list[str]) -> list[Language]:
        languages = []
        inline = {"phrase": self.settings.phrase, "site": self.settings.site, "lists": self.settings.lists}
        try:
            languages.append(read_table(inline, "the settings of the plugin commands"))
        except PhraseError as error:
            problems.append(str(error))
        for path in self.files:
            if self.settings.phrases is None and not path.exists():
                continue
            try:
                self._good[path] = read_file(path)
            except PhraseError as error:
                kept = " Its last good content stays in use." if path in self._good else ""
                problems.append(f"{error}{kept}")
            if path in self._good:
                languages.append(self._good[path])
        return languages

    def _path(self, name: str) -> Path:
        return self._config_folder() / Path(name).expanduser()

    def _config_folder(self) -> Path:
        home = self.env.get("XDG_CONFIG_HOME", "")
        base = Path(home) if home.startswith("/") else Path(self.env.get("HOME") or "~").expanduser() / ".config"
        return base / "utter"


def _known_things(applications: Sequence[Application], sites: Sequence[SiteTable]) -> dict[str, SlotList]:
    names, kinds = spoken_names(applications)
    addresses: dict[str, str] = {}
    for site in sites:
        for name in (site.name, *site.say):
            addresses.setdefault(name, site.url)
    return {
        "app": TextList(tuple(names.items())),
        "app_kind": TextList(tuple(kinds.items())),
        "site": TextList(tuple(addresses.items())),
        "url": WebAddress(),
    }


def _candidates(applications: Sequence[Application], sites: Sequence[SiteTable]) -> tuple[Candidate, ...]:
    found: dict[str, Candidate] = {}
    for site in sites:
        candidate = Candidate(id=f"site:{site.name.lower()}", value=site.url, label=site.name)
        found.setdefault(candidate.id, candidate)
    for item in applications:
        found[f"app:{item.app}"] = Candidate(id=f"app:{item.app}", value=item.app, label=item.names[0])
    return tuple(found.values())
