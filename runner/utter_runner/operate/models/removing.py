"""Deletes models: names first, then every content that no name leads to.

Rules here: whoever shares a content with another plugin keeps it; what a plugin in the configuration needs is refused,
unless it is said twice; where it is not known what a plugin needs, its models stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from utter_runner.operate.errors import OperateError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from utter_runner.operate.models.store import Store
    from utter_runner.operate.models.wanted import Needs, Wanted


class Removed(NamedTuple):
    """What was deleted: (plugin, name) of each model, and how many bytes are free again."""

    names: list[tuple[str, str]]
    freed: int


def remove_models(store: Store, models: Sequence[Wanted], *, force: bool) -> Removed:
    """Delete models, and what has come of those that are not complete.

    Raises:
        OperateError: the configuration has a plugin run that needs one of them, and `force` is not given.
        OSError: they cannot be deleted.
    """
    needed = sorted({one.plugin for one in models if one.configured})
    if needed and not force:
        raise OperateError(
            f"The configuration has plugins run that need them: {', '.join(needed)}. --force deletes them."
        )
    if not store.root.exists():
        return Removed([], 0)
    with store.held():
        links = store.links()
        there = [(one.plugin, one.model.name) for one in models if (one.plugin, one.model.name) in links]
        for plugin, name in there:
            store.take(plugin, name)
        freed = sum(content.size for content in store.drop_unnamed())
        keep = {path for path in store.parts() if path not in {one.model.sha256 for one in models}}
        freed += store.sweep(keep, older_s=0)
    return Removed(there, freed)


def remove_unused(store: Store, known: Needs) -> Removed:
    """Delete the models that no plugin on this machine needs, and what was begun of such.

    Raises:
        OSError: they cannot be deleted.
    """
    if not store.root.exists():
        return Removed([], 0)
    wanted = {(one.plugin, one.model.name): one.model.sha256 for one in known.wanted}
    with store.held():
        gone = [
            (plugin, name)
            for (plugin, name), digest in store.links().items()
            if plugin not in known.unknown and wanted.get((plugin, name)) != digest
        ]
        for plugin, name in gone:
            store.take(plugin, name)
        freed = sum(content.size for content in store.drop_unnamed())
        freed += store.sweep(set(wanted.values()), older_s=0)
    return Removed(gone, freed)
