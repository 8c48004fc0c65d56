"""The tokens as the running daemon knows them: read again whenever the file has changed.

Rules here: one stat for each look, and a read of at most 64 KiB when it tells of a change; a file that cannot be
believed holds no tokens, which is told once for each change. It lies on a local disk, beside the configuration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from utter_runner.config.tokens import StoredToken, TokensError, matching, read_tokens

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class TokenStore:
    """The file of tokens.

    Args:
        path: the file; it need not exist.
        on_problem: told why the file is not used, whenever it has changed and still is not.
    """

    def __init__(self, path: Path, on_problem: Callable[[str], None]) -> None:
        self._path = path
        self._on_problem = on_problem
        self._seen: tuple[int, ...] | None = None
        self._tokens: list[StoredToken] = []
        self._problem: str | None = None

    @property
    def problem(self) -> str | None:
        """Why the file, as it is now, is not used, in one or two sentences; None if it is or is not there."""
        self._look()
        return self._problem

    def matching(self, offered: str) -> StoredToken | None:
        """Return the entry of the token that is offered, as the file is now."""
        self._look()
        return matching(self._tokens, offered)

    def holds(self, token: StoredToken) -> bool:
        """Whether a token is still in the file. One of the same name that was made anew is another."""
        self._look()
        return token in self._tokens

    def _look(self) -> None:
        try:
            status = self._path.lstat()
            directory = self._path.parent.stat()
        except OSError:
            seen: tuple[int, ...] = ()
        else:
            # The change time also tells of another mode or owner, which nobody can set back.
            seen = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            seen += (directory.st_mode, directory.st_uid)
        if seen == self._seen:
            return
        self._seen = seen
        self._tokens, self._problem = [], None
        try:
            self._tokens = read_tokens(self._path)
        except TokensError as error:
            self._problem = f"{error} Until then no token of it is right."
            self._on_problem(self._problem)
