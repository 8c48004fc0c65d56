"""From the sentences of others to one command or one edit, and the command that installs a program here.

Rules here: pure, `install` apart, which looks for the machine's package manager.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from utter_runner.operate.doctor.outside import Outside

_RUN = re.compile(r"\b[Rr]un:? +`?((?:chmod|utter|pip|systemctl|sudo)\b[^`]*?)`?[.]?\s*$")
_INSTEAD = re.compile(r": (utter [a-z ]+)$")
_PLACE = re.compile(r"(/[^\s:]+:\d+): ")
_INSTALL: Final = {"apt": "apt install", "dnf": "dnf install", "pacman": "pacman -S", "zypper": "zypper install"}
_NAMES: Final = {
    "pipewire-bin": {"dnf": "pipewire-utils", "pacman": "pipewire", "zypper": "pipewire-tools"},
    "libportaudio2": {"dnf": "portaudio", "pacman": "portaudio", "zypper": "portaudio"},
}


def remedy_in(text: str) -> str:
    """The command that a sentence of ours ends in, or nothing."""
    found = _RUN.search(text) or _INSTEAD.search(text)
    return found[1].strip() if found else ""


def place_of(text: str) -> str:
    """The edit of the place that a sentence of ours names as FILE:LINE, or nothing."""
    found = _PLACE.search(text)
    return f"Edit {found[1]}" if found else ""


def install(outside: Outside, package: str) -> str:
    """The command that installs a package of the distribution; `package` is Debian's name for it."""
    for manager, command in _INSTALL.items():
        if outside.which(manager):
            return f"sudo {command} {_NAMES.get(package, {}).get(manager, package)}"
    return f"Install the package {package} of your distribution"
