"""The units of the systemd user manager: as they ship, and as they are written for one installation.

Rules here: pure, but for reading what ships. A unit that was written here says so in its first line, and whatever does
not is somebody else's.
"""

from __future__ import annotations

import re
from pathlib import Path

from utter_runner.operate.errors import OperateError

SERVICE = "utter-runner.service"
SOCKET = "utter-runner.socket"
HARDENING = "hardening.conf"
DROP_IN = f"{SERVICE}.d/50-{HARDENING}"
DEFAULT_TARGET = "graphical-session.target"

MARK = "# Written by `utter service install`, which writes it anew."
_ADVICE = "# Changes of your own belong into a drop-in: systemctl --user edit "


def quoted(word: str, *, program: bool = False) -> str:
    r"""Return a word of ExecStart= that systemd reads back as it is (systemd.service(5), "COMMAND LINES").

    Args:
        word: the program or an argument.
        program: whether it is the program: variables are not looked for in it.

    Raises:
        OperateError: it has a control character.
    """
    if any(ord(char) < ord(" ") or char == "\x7f" for char in word):
        raise OperateError(f"{word!r} has a control character, and no unit can name it.")
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped if program else escaped.replace("$", "$$")}"'


def shipped(name: str) -> str:
    """Return the text of a unit as it ships."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def service_unit(program: Path, config: Path | None = None, target: str = DEFAULT_TARGET) -> str:
    """Return the service for one installation.

    Args:
        program: the runner's absolute path.
        config: the absolute path of a configuration; None for the usual one.
        target: what starts it.

    Raises:
        OperateError: a path cannot be named in a unit.
    """
    words = [quoted(str(program), program=True)]
    if config is not None:
        words += ["--config", quoted(str(config))]
    text = _set(shipped(SERVICE), "ExecStart", " ".join(words))
    return _marked(SERVICE, _set(text, "WantedBy", target))


def socket_unit() -> str:
    """Return the socket."""
    return _marked(SOCKET, shipped(SOCKET))


def hardening() -> str:
    """Return the drop-in that hardens the service."""
    return _marked(SERVICE, shipped(HARDENING))


def is_ours(text: str) -> bool:
    """Whether a unit was written here."""
    return text.startswith(MARK)


def _marked(name: str, text: str) -> str:
    return f"{MARK}\n{_ADVICE}{name}\n{text}"


def _set(text: str, key: str, value: str) -> str:
    # A function, so that nothing in the value means anything.
    changed, count = re.subn(rf"^{key}=.*$", lambda _found: f"{key}={value}", text, flags=re.MULTILINE)
    if count != 1:
        raise OperateError(f"The unit that ships does not say {key}= once: this installation is damaged.")
    return changed
