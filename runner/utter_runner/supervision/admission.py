"""Who may be admitted: pure functions over what plugins provide and require.

Rules here: a plugin is admitted when its requires are covered by the runner, by itself and by plugins admitted already
(DESIGN and PROTOCOL.md, "Admission"); the order of the config plays no part in the outcome.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from utter_protocol.capabilities import Registry


class Offer(msgspec.Struct, frozen=True):
    """What one plugin provides and requires."""

    provides: tuple[str, ...]
    requires: tuple[str, ...]


def admissible(waiting: Mapping[str, Offer], admitted: Mapping[str, Offer], registry: Registry) -> list[str]:
    """Return the ids of `waiting` that can be admitted, each after those that it needs."""
    order: list[str] = []
    provided = {one for offer in admitted.values() for one in offer.provides}
    left = dict(waiting)
    while True:
        covered = [
            plugin for plugin, offer in left.items() if not registry.missing(offer.requires, offer.provides, provided)
        ]
        if not covered:
            return order
        for plugin in covered:
            provided.update(left.pop(plugin).provides)
        order += covered


def explain_gap(plugin: str, offers: Mapping[str, Offer], missing: Sequence[str], registry: Registry) -> str:
    """Say in one sentence why `plugin` is not admitted: what is missing, and who could provide it."""
    parts = []
    for capability in missing:
        providers = registry.providers(capability, {name: offer.provides for name, offer in offers.items()})
        if not providers:
            parts.append(f"{capability}, which no configured plugin provides")
        elif any(_depends(other, plugin, offers, registry) for other in providers):
            parts.append(f"{capability} of {' or '.join(providers)}, which in turn waits for {plugin} (a cycle)")
        else:
            parts.append(f"{capability} of {' or '.join(providers)}, which is not running")
    return f"{plugin} requires " + "; ".join(parts)


def _depends(plugin: str, on: str, offers: Mapping[str, Offer], registry: Registry) -> bool:
    seen: set[str] = set()
    todo = [plugin]
    while todo:
        current = todo.pop()
        if current == on:
            return True
        if current in seen or current not in offers:
            continue
        seen.add(current)
        provides = {name: offer.provides for name, offer in offers.items() if name != current}
        for capability in registry.missing(offers[current].requires, offers[current].provides, ()):
            todo += registry.providers(capability, provides)
    return False


def stop_waves(admitted: Iterable[str], offers: Mapping[str, Offer], registry: Registry) -> list[list[str]]:
    """Group plugins for stopping, so that nobody loses what they require while they run.

    Args:
        admitted: the plugins, those that were admitted last first.
        offers: what each provides and requires.
        registry: says what serves whom.

    Returns:
        Groups in the order of stopping: those that nobody left could depend on; each group can stop side by side.
    """
    left = {plugin: offers[plugin] for plugin in admitted}
    waves: list[list[str]] = []
    while left:
        needed: set[str] = set()
        for plugin, offer in left.items():
            others = {name: other.provides for name, other in left.items() if name != plugin}
            for capability in registry.missing(offer.requires, offer.provides, ()):
                needed.update(registry.providers(capability, others))
        # In a circle, whoever came last: all others could be admitted without it.
        wave = [plugin for plugin in left if plugin not in needed] or [next(iter(left))]
        waves.append(wave)
        for plugin in wave:
            del left[plugin]
    return waves
