"""Plugin packages on disk, as `utter plugins available` and `utter plugins check` tell of them.

Rules here: manifests and the runner's configuration are read, nothing else; what is found here is what the runner
would find and say, because both ask `utter_protocol`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from utter_protocol.manifest import ManifestError
from utter_protocol.packages import (
    MANIFEST_NAME,
    Package,
    PackageError,
    all_packages,
    check_package,
    user_directories,
)
from utter_protocol.settings import check_manifest
from utter_runner.cli.connection import UsageError
from utter_runner.config import Config, ConfigError, default_config_path, load_config
from utter_runner.operate.condition import oddities, unmet_here


def installed(config_path: str | None) -> list[dict[str, Any]]:
    """Every package that the runner would find, by id: `{id, version, kind, path, bundled, configured, problems}`.

    Args:
        config_path: the runner's configuration; None: the usual one, if it is there.

    Raises:
        UsageError: the configuration cannot be used.
    """
    config = configuration(config_path)
    entries = {entry.id for entry in config.plugin if entry.enabled}
    directories: list[str | Path] = [*config.runner.plugin_dirs, *user_directories(os.environ)]
    return [{**_described(name, found), "configured": name in entries} for name, found in all_packages(directories)]


def configuration(path: str | None) -> Config:
    """The runner's configuration, from a file or from where it usually is; an empty one if that is not there.

    Raises:
        UsageError: it cannot be used.
    """
    place = Path(path) if path is not None else default_config_path(os.environ)
    if path is None and not place.exists():
        return Config()
    try:
        return load_config(place)
    except ConfigError as error:
        raise UsageError(str(error)) from None


def _described(name: str, found: Package | PackageError) -> dict[str, Any]:
    version = kind = path = ""
    if isinstance(found, PackageError):
        problems = [str(found)]
    else:
        path = str(found.manifest)
        try:
            manifest = check_manifest(found.manifest)
        except ManifestError as error:
            problems = str(error).splitlines()
        else:
            version, kind = manifest.version, manifest.kind
            problems = unmet_here(manifest)
            if manifest.name != name:
                problems.append(f"{path} is of a plugin named {manifest.name}.")
    bundled = isinstance(found, Package) and found.bundled
    return {"id": name, "version": version, "kind": kind, "path": path, "bundled": bundled, "problems": problems}


def examine(path: str) -> dict[str, Any]:
    """What is to be said of a manifest: `{ok, manifest, problems: [{line, field, message, text}], warnings}`.

    Warnings are about what holds here and now, such as the machine; they do not make a manifest a wrong one.

    Raises:
        UsageError: there is nothing at `path`.
    """
    file = Path(path, MANIFEST_NAME) if Path(path).is_dir() else Path(path)
    if not file.exists():
        raise UsageError(f"There is no manifest {file}.")
    try:
        manifest = check_manifest(file)
    except ManifestError as error:
        lines = str(error).splitlines()
        problems = [{**one._asdict(), "text": text} for one, text in zip(error.problems, lines, strict=True)]
        return {"ok": False, "manifest": str(file), "problems": problems, "warnings": []}
    warnings = [*oddities(manifest), *unmet_here(manifest)]
    try:
        check_package(file)
    except PackageError as error:
        warnings.append(str(error))
    return {"ok": True, "manifest": str(file), "problems": [], "warnings": warnings}
