"""A second program that reads addresses by the WHATWG URL Standard: node's class URL.

Rules here: it shares no code with the parser of the policy's choice but for what both took from the standard.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

NODE = shutil.which("node")

_PROGRAM = """
const lines = require("node:readline").createInterface({ input: process.stdin });
lines.on("line", (line) => {
  console.log(JSON.stringify(JSON.parse(line).map((text) => {
    try { const u = new URL(text); return [u.href, u.protocol, u.host, u.username + u.password]; }
    catch { return null; }
  })));
});
"""


class Reading(NamedTuple):
    """What it reads: the serialization, the scheme with its colon, the host with its port, and any credentials."""

    href: str
    protocol: str
    host: str
    credentials: str


class OtherReader:
    """A node process that answers a list of addresses at a time. OSError where there is no node."""

    def __init__(self) -> None:
        if NODE is None:
            raise FileNotFoundError("node is not installed")
        self._process = subprocess.Popen([NODE, "-e", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._process.communicate()

    def read(self, texts: Sequence[str]) -> list[Reading | None]:
        """Read addresses; None for what it takes for none."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(list(texts)).encode() + b"\n")
        self._process.stdin.flush()
        answers = json.loads(self._process.stdout.readline())
        return [None if one is None else Reading(*one) for one in answers]
