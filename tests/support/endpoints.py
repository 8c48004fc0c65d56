"""The runner's socket in the hands of another process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SERVE = """
import sys
from pathlib import Path
from utter_runner.rpc.endpoint import Endpoint
endpoint = Endpoint(Path(sys.argv[1]))
print("serving", flush=True)
sys.stdin.read()
"""


@contextmanager
def another_runner(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A second process that owns the endpoint."""
    process = subprocess.Popen([sys.executable, "-c", _SERVE, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"serving\n"
        try:
            yield process
        finally:
            process.kill()
