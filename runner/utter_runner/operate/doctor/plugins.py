"""Checks of the plugins, and the part of the report that lists them.

Rules here: with the runner up, what it says of a plugin is what is so; without it, the manifests and the configuration
tell what would be, and what nobody has negotiated or probed is null. What a plugin wrote to stderr is not shown.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from utter_protocol import PROTOCOL
from utter_protocol.capabilities import load_registry
from utter_protocol.errors import ErrorCode
from utter_protocol.manifest import ManifestError, load_manifest
from utter_protocol.packages import Package, PackageError, all_packages, find_package, user_directories
from utter_runner.operate.doctor.model import (
    Deprecated,
    Finding,
    Negotiated,
    Permission,
    PluginReport,
    broken,
    ok,
    warning,
)
from utter_runner.operate.doctor.registry import check
from utter_runner.operate.doctor.words import place_of, remedy_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from utter_protocol.manifest import Manifest
    from utter_runner.config import PluginConfig
    from utter_runner.operate.doctor.look import Look

PLUGIN_PROBLEM = re.compile(r"Plugin ([a-z0-9][a-z0-9._-]*): ")
"""How the daemon begins a sentence of why a plugin is not run."""

_MISSED = "What it would do is not done."


def reports(look: Look) -> list[PluginReport]:
    """Every plugin that is configured and enabled, and every other one that the runner has."""
    contact = look.contact()
    if contact.state != "up":
        return _from_disk(look)
    running = [
        _told(plugin, contact.validations.get(str(plugin.get("id")), {}))
        for plugin in contact.status.get("plugins", ())
    ]
    known = {one.id for one in running}
    return [*running, *(one for one in _from_disk(look) if one.id not in known)]


def _told(plugin: Mapping[str, Any], validation: Mapping[str, Any]) -> PluginReport:
    negotiated = plugin.get("negotiated")
    return PluginReport(
        id=plugin["id"],
        kind=plugin.get("kind", ""),
        epoch=plugin.get("epoch"),
        status=plugin.get("status"),
        negotiated=Negotiated(protocol=negotiated["protocol"], abi=negotiated["abi"]) if negotiated else None,
        unknown_capabilities=list(validation.get("unknown_capabilities", ())),
        missing_requires=list(plugin.get("missing_requires", ())),
        permissions=[
            Permission(name=one["name"], enforced=one.get("enforced"), advisory=one.get("advisory"))
            for one in (plugin.get("sandbox") or {}).get("permissions", ())
        ],
        deprecations=[
            Deprecated(
                capability=one["capability"],
                since=one.get("since", ""),
                replacement=one.get("replacement", ""),
                removed=one.get("removed", ""),
            )
            for one in validation.get("deprecations", ())
        ],
    )


def _directories(look: Look) -> list[str | Path]:
    return [*look.config.runner.plugin_dirs, *user_directories(look.outside.environ)]


def manifest_of(look: Look, entry: PluginConfig) -> Manifest | None:
    """The manifest of a configured plugin, if it has one that can be read."""
    try:
        if entry.manifest is not None:
            return load_manifest(entry.manifest)
        if entry.entrypoint is None and (package := find_package(entry.id, _directories(look))):
            return load_manifest(package.manifest)
    except (PackageError, ManifestError, OSError):
        # Why, the daemon says itself: `plugins.configured`.
        return None
    return None


def _from_disk(look: Look) -> list[PluginReport]:
    entries = [entry for entry in look.config.plugin if entry.enabled]
    manifests = {entry.id: manifest_of(look, entry) for entry in entries}

    def both(entry: PluginConfig, field: str) -> list[str]:
        manifest = manifests[entry.id]
        return list(dict.fromkeys([*(getattr(manifest, field) if manifest else ()), *getattr(entry, field)]))

    offered = {one for entry in entries for one in both(entry, "provides")}
    found = []
    for entry in entries:
        manifest = manifests[entry.id]
        requires = both(entry, "requires")
        findings = load_registry().classify([*both(entry, "provides"), *requires])
        found.append(
            PluginReport(
                id=entry.id,
                kind=entry.kind or (manifest.kind if manifest else ""),
                unknown_capabilities=[*findings.unknown, *findings.malformed],
                missing_requires=load_registry().missing(requires, (), offered),
                permissions=[Permission(name=name) for name in both(entry, "permissions")],
                deprecations=list(_deprecated(findings.deprecated)),
            )
        )
    return found


def _deprecated(capabilities: Iterable[str]) -> Iterator[Deprecated]:
    for one in capabilities:
        if (end := load_registry().deprecation(one)) is not None:
            yield Deprecated(capability=one, since=end.since, replacement=end.replacement, removed=end.removed)


@check("plugins.configured")
def configured(look: Look) -> Iterator[Finding]:
    """Whether everything that is configured can be run."""
    if look.config_problems:
        return
    entries = [entry.id for entry in look.config.plugin if entry.enabled]
    if not entries:
        yield warning(
            "No plugin is configured.",
            "The runner hears and understands nothing without plugins.",
            look.edit('add a [[plugin]] table with an id that "utter plugins available" lists'),
        )
        return
    status = look.status
    said: Sequence[str] = status.get("warnings", ()) if status else look.trial()
    running = {plugin.get("id") for plugin in status.get("plugins", ())}
    problems = [text for text in said if (found := PLUGIN_PROBLEM.match(text)) and found[1] not in running]
    for text in problems:
        plugin = PLUGIN_PROBLEM.match(text)
        fallback = look.edit(f'the [[plugin]] table with id = "{plugin[1] if plugin else ""}"')
        yield broken(f"It cannot be run. {text}", _MISSED, remedy_in(text) or place_of(text) or fallback)
    for name in entries if status else ():
        if name not in running and not any(text.startswith(f"Plugin {name}: ") for text in problems):
            yield warning(
                f"The plugin {name} is in the configuration, and the runner does not have it.",
                "The configuration was changed after the runner had read it.",
                "utter reload",
            )
    if not problems:
        yield ok(f"Plugins that can be run: {', '.join(entries)}.")


@check("plugins.running")
def running(look: Look) -> Iterator[Finding]:
    """How each plugin is."""
    plugins = look.status.get("plugins", ())
    for plugin in plugins:
        yield from _condition(plugin)
    ready = [str(plugin["id"]) for plugin in plugins if plugin.get("status") == "ready"]
    if ready:
        yield ok(f"Ready: {', '.join(ready)}.")


def _condition(plugin: Mapping[str, Any]) -> Iterator[Finding]:
    name, status, detail = str(plugin["id"]), plugin.get("status"), str(plugin.get("detail") or "")
    told = f"{name} is {status}" + (f": {detail}" if detail else ".")
    if status in ("failed", "backoff"):
        yield broken(told, _MISSED, f"utter plugins restart {name}")
    elif status == "stopped":
        yield warning(told, _MISSED, f"utter plugins start {name}")
    elif status == "degraded":
        yield warning(told, "It runs without something that it needs.", f"utter plugins validate {name}")
    elif status != "ready":
        yield warning(told, "It does nothing until it is ready.", f"utter plugins validate {name}")
    elif restarts := plugin.get("restarts"):
        yield warning(
            f"{name} is ready, and has been restarted {restarts} times.",
            "Something ends it, and what it was doing then was lost.",
            f"utter logs {name}",
        )


@check("plugins.versions")
def versions(look: Look) -> Iterator[Finding]:
    """What each plugin has negotiated."""
    fine = []
    for plugin in reports(look):
        error = look.contact().validations.get(plugin.id, {}).get("error") or {}
        if error.get("code") == ErrorCode.INCOMPATIBLE:
            yield broken(
                f"{plugin.id} and this runner do not speak the same protocol: {error.get('message', '')}",
                _MISSED,
                f"utter plugins update {plugin.id}",
            )
        elif plugin.negotiated is None:
            continue
        elif plugin.negotiated.protocol == PROTOCOL:
            fine.append(f"{plugin.id} {plugin.negotiated.protocol}/{plugin.negotiated.abi}")
        else:
            yield warning(
                f"{plugin.id} speaks protocol {plugin.negotiated.protocol}, and the runner speaks {PROTOCOL}.",
                "A later runner will not speak the old one any more.",
                f"utter plugins update {plugin.id}",
            )
    if fine:
        yield ok(f"Protocol/abi: {', '.join(fine)}.")


@check("plugins.capabilities")
def capabilities(look: Look) -> Iterator[Finding]:
    """Whether all capabilities are known, and none is on its way out."""
    plugins = reports(look)
    for plugin in plugins:
        for name in plugin.unknown_capabilities:
            yield warning(
                f"{plugin.id} declares {name}, which this runner does not know.",
                "Nothing uses what it offers by that name.",
                f"utter plugins update {plugin.id}",
            )
        for end in plugin.deprecations:
            gone = f", and is gone in {end.removed}" if end.removed else ""
            yield warning(
                f"{plugin.id} declares {end.capability}, which is deprecated since protocol {end.since}{gone}.",
                "A later runner will not know it.",
                f"Edit the manifest of {plugin.id}: declare {end.replacement} in its place",
            )
    if plugins and not any(plugin.unknown_capabilities or plugin.deprecations for plugin in plugins):
        yield ok("All capabilities are known, and none is deprecated.")


@check("plugins.requires")
def requires(look: Look) -> Iterator[Finding]:
    """Whether each plugin has what it needs."""
    plugins = reports(look)
    for plugin in plugins:
        for name in plugin.missing_requires:
            yield broken(
                f"{plugin.id} requires {name}, which no plugin that runs provides.", _MISSED, _provider(look, name)
            )
    if plugins and not any(plugin.missing_requires for plugin in plugins):
        yield ok("Every plugin has what it requires.")


def _provider(look: Look, capability: str) -> str:
    for name, found in all_packages(_directories(look)):
        if isinstance(found, Package):
            try:
                manifest = load_manifest(found.manifest)
            except (ManifestError, OSError):
                continue
            if load_registry().providers(capability, {name: manifest.provides}):
                return look.edit(f'add [[plugin]] id = "{name}"')
    return f"Install a plugin that provides {capability}: utter plugins install PACKAGE"


@check("plugins.permissions")
def permissions(look: Look) -> Iterator[Finding]:
    """Which permissions are enforced, and which are only said."""
    enforce = look.config.security.enforce
    plugins = [plugin for plugin in look.status.get("plugins", ()) if plugin.get("permissions") is not None]
    advisory = 0
    for plugin in plugins:
        sandbox = plugin.get("sandbox") or {}
        reasons = sandbox.get("reasons") or {}
        names = [str(one["name"]) for one in sandbox.get("permissions", ()) if one.get("advisory")]
        advisory += len(names)
        if enforce and names:
            yield warning(
                f"Of {plugin['id']}, {', '.join(names)} could not be shown to be enforced: "
                f"{'; '.join(str(reasons.get(name, 'no probe has run')) for name in names)}.",
                "It could do these things without the permission.",
                f"utter plugins validate {plugin['id']}",
            )
    if plugins and not (enforce and advisory):
        held = "as probed, enforced" if enforce else "advisory, for [security] enforce is off"
        yield ok(f"The plugins' permissions are {held}.")
