"""Which plugins need which models, and what is there of them.

Rules here: manifests and the configuration are read, nothing else; what is found is what the runner would find. A
package that cannot be read has no models here, and is told of: whose they were is then not known.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from utter_protocol.manifest import ManifestError, load_manifest
from utter_protocol.models import Found, model_name_problems, united
from utter_protocol.packages import MANIFEST_NAME, PackageError, all_packages, user_directories
from utter_runner.operate.errors import OperateError
from utter_runner.operate.models.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from utter_protocol.manifest import Model
    from utter_runner.config import Config, PluginConfig


class Wanted(NamedTuple):
    """One model of one plugin, and whether the configuration has that plugin run."""

    plugin: str
    model: Model
    configured: bool


class Needs(NamedTuple):
    """What all plugins need, and the ids of those about which that is not known, each with a sentence."""

    wanted: list[Wanted]
    unknown: dict[str, str]


class ModelState(NamedTuple):
    """What is there of one model; `path` is where its plugin finds it."""

    plugin: str
    model: Model
    configured: bool
    found: Found
    path: Path


def needs(config: Config, environ: Mapping[str, str]) -> Needs:
    """What the plugins of a configuration and all other packages on this machine need, by plugin and in their order."""
    wanted: list[Wanted] = []
    unknown: dict[str, str] = {}
    entries = {entry.id: entry for entry in config.plugin}
    manifests: dict[str, list[Model]] = {}
    directories: list[str | Path] = [*config.runner.plugin_dirs, *user_directories(environ)]
    for name, package in all_packages(directories):
        if name in entries and (entries[name].manifest or entries[name].entrypoint):
            continue
        try:
            if isinstance(package, PackageError):
                raise package
            manifests[name] = load_manifest(package.manifest).models
        except (PackageError, ManifestError) as error:
            unknown[name] = str(error)
    for name, entry in entries.items():
        try:
            models = united(_named_manifest(entry) or manifests.get(name, []), entry.models)
        except ManifestError as error:
            unknown[name] = str(error)
            continue
        if problems := model_name_problems(models):
            unknown[name] = problems[0][1]
            continue
        manifests[name] = models
    for name, models in sorted(manifests.items()):
        configured = name in entries and entries[name].enabled
        wanted += [Wanted(name, model, configured) for model in models]
    return Needs(wanted, unknown)


def _named_manifest(entry: PluginConfig) -> list[Model]:
    """The models of the manifest that an entry names itself.

    Raises:
        ManifestError: it cannot be used.
    """
    if entry.manifest is None:
        return []
    path = Path(entry.manifest)
    return load_manifest(path / MANIFEST_NAME if path.is_dir() else path).models


def model_states(
    config: Config, environ: Mapping[str, str], *, thorough: bool = False, everything: bool = False
) -> list[ModelState]:
    """What is there of the models that plugins need, for `utter models list` and `utter doctor`.

    Args:
        config: the runner's.
        environ: names the directories of packages and the store.
        thorough: read every file whole and compare digests, which takes a second for each gigabyte or so; without it
            names and sizes are looked at.
        everything: of all packages, and not only of those that the configuration has run.

    Raises:
        OSError: with `thorough`, a file cannot be read.
    """
    store = Store.of(environ)
    return [
        ModelState(
            one.plugin,
            one.model,
            one.configured,
            store.state(one.plugin, one.model, thorough=thorough),
            store.directory_of(one.plugin) / one.model.name,
        )
        for one in needs(config, environ).wanted
        if everything or one.configured
    ]


def chosen(wanted: Sequence[Wanted], names: Sequence[str]) -> list[Wanted]:
    """The models that words on a command line mean: a plugin's id, a model's name, or the directory of several.

    Raises:
        OperateError: a word means none.
    """
    found: dict[tuple[str, str], Wanted] = {}
    for name in names:
        meant = [*_meant(wanted, name)]
        if not meant:
            known = ", ".join(dict.fromkeys(one.plugin for one in wanted)) or "none"
            raise OperateError(
                f"There is no model {name!r}, and no plugin of that id that needs one. Plugins that do: {known}. "
                "`utter models list` shows all."
            )
        found |= {(one.plugin, one.model.name): one for one in meant}
    return [*found.values()]


def _meant(wanted: Sequence[Wanted], name: str) -> Iterator[Wanted]:
    plugins = {one.plugin for one in wanted}
    for one in wanted:
        if one.plugin == name if name in plugins else f"{one.model.name}/".startswith(f"{name}/"):
            yield one
