"""What is worth knowing of the executables in `allow_binaries` before anybody relies on them.

Rules here: warnings only, because none of it is wrong; files are looked at, and nothing is run.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# Programs that run what they are told to: whoever is one of them may be anything.
_INTERPRETER = re.compile(
    r"(python|pypy|ruby|perl|lua|luajit|node|nodejs|deno|bun|php|guile|tclsh|wish|gjs|java|mono|wine|Rscript|qjs)[\d.]*"
    r"|(ba|da|z|fi|k|mk|tc|c|a)?sh|nu|env|busybox|toybox|awk|gawk|mawk|gdb|ld-linux.*|ld\.so|xargs|socat|nc|ncat"
)


def binary_warnings(paths: Iterable[str], where: str) -> Iterator[str]:
    """Yield a sentence for each path that lets in more, or less, than it seems to.

    Args:
        paths: absolute ones.
        where: names the key, such as `[socket] allow_binaries`.
    """
    for path in paths:
        real = os.path.realpath(path)
        name = next((one for one in map(os.path.basename, (path, real)) if _INTERPRETER.fullmatch(one)), None)
        if name is not None:
            yield f"{where} names {path}, which runs any program that it is given ({name}): all of those are let in."
        elif _is_script(real):
            yield (
                f"{where} names {path}, which is a script: what connects then is its interpreter, so this lets nobody "
                "in. Give the script a token instead: utter token new"
            )


def _is_script(path: str) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return os.read(fd, 2) == b"#!"
    except OSError:
        return False
    finally:
        os.close(fd)
