"""Where the user's installed packages, the record of them and the trusted keys are (XDG base directory specification).

Rules here: pure; a variable that is set to a relative path counts as unset, as the specification wants it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from utter_runner.operate.errors import OperateError

if TYPE_CHECKING:
    from collections.abc import Mapping


class Places(NamedTuple):
    """The directories and files of one user.

    Attributes:
        plugins: the directory that packages are installed in, as `plugins/ID`.
        lockfile: the record of what is installed.
        trusted_keys: the directory whose `*.pub` are minisign public keys.
    """

    plugins: Path
    lockfile: Path
    trusted_keys: Path

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Self:
        """The places that an environment says.

        Raises:
            OperateError: neither HOME nor the variable for one of them is set.
        """
        return cls(
            _base(environ, "XDG_DATA_HOME", ".local/share") / "utter" / "plugins",
            _base(environ, "XDG_STATE_HOME", ".local/state") / "utter" / "install.lock",
            _base(environ, "XDG_CONFIG_HOME", ".config") / "utter" / "trusted-keys",
        )


def _base(environ: Mapping[str, str], variable: str, below_home: str) -> Path:
    base = environ.get(variable, "")
    if base.startswith("/"):
        return Path(base)
    home = environ.get("HOME", "")
    if not home.startswith("/"):
        raise OperateError(f"Neither {variable} nor HOME is set to an absolute path, so there is no place for plugins.")
    return Path(home, below_home)
