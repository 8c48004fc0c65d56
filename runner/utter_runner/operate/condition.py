"""What is to be said of a manifest on this machine, and of the package that it lies in.

Rules here: sentences for people; nothing is started.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from utter_protocol import PROTOCOL
from utter_protocol.capabilities import load_registry
from utter_protocol.manifest import current_platform, unknown_permissions, unmet_conditions
from utter_protocol.packages import missing_for
from utter_runner import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from utter_protocol.manifest import Manifest


def unmet(manifest: Manifest) -> list[str]:
    """Why the runner of this installation would not start it, whatever is installed besides."""
    return unmet_conditions(manifest, runner=__version__, protocol=PROTOCOL, platform=current_platform())


def unmet_here(manifest: Manifest) -> list[str]:
    """As `unmet`, and what would have to be installed."""
    missing = missing_for(manifest.runtime)
    return [*unmet(manifest), missing] if missing else unmet(manifest)


def oddities(manifest: Manifest) -> list[str]:
    """What is unknown or deprecated in a manifest that is in order."""
    findings = load_registry().classify([*manifest.provides, *manifest.requires])
    return [*findings.warnings, *unknown_permissions(manifest.permissions)]


def missing_program(manifest: Manifest, root: Path) -> str:
    """Why the package in `root` cannot be what its entrypoint says, in one sentence; empty if it can."""
    program = manifest.entrypoint[0]
    own = manifest.runtime == "wasm" or ("/" in program and not os.path.isabs(program))  # noqa: PTH117 - it is text
    if not own or "${PYTHON}" in program:
        return ""
    try:
        found = (root / program).resolve(strict=True)
    except (OSError, RuntimeError, ValueError):
        return f"The entrypoint names {program!r}, which is not in the package."
    if not found.is_relative_to(root.resolve()):
        return f"The entrypoint names {program!r}, which lies outside of the package."
    if not found.is_file():
        return f"The entrypoint names {program!r}, which is no file."
    if manifest.runtime == "subprocess" and not os.access(found, os.X_OK):
        return f"The entrypoint names {program!r}, which is not executable: chmod +x it before the archive is made."
    return ""
