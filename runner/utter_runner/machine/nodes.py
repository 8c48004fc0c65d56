"""Who may read a device node, and the command that lets a user in.

Rules here: pure; the caller has looked at the node.
"""

from __future__ import annotations

from typing import Final

USUAL_GROUP: Final = "input"
"""The group of keyboards wherever the node does not say otherwise."""
BY_HAND: Final = "bind `utter ptt press` and `utter ptt release` to a key in your compositor"
"""What works without any right to read keyboards."""

_GROUP_READ: Final = 0o040


def group_may_read(mode: int, gid: int) -> bool:
    """Whether the group of a node may read it, and is one that users are in, which root's is not."""
    return bool(gid and mode & _GROUP_READ)


def join_group(group: str, user: str = "$USER") -> str:
    """The command that puts a user into a group, which holds from the next login on."""
    return f"sudo usermod -aG {group} {user}"
