"""`python -m utter_runner.wasm [--memory-mib N] [--env NAME]... -- MODULE [ARGUMENT...]`.

Rules here: nothing but the command line. Variables are named and not written out, because everybody can read a command
line.
"""

from __future__ import annotations

import argparse
import os
import sys

from utter_runner.wasm.host import DEFAULT_MEMORY_MIB, run


def main(arguments: list[str] | None = None) -> int:
    """Run a module; return the exit code of its process."""
    parser = argparse.ArgumentParser(prog="utter_runner.wasm", description="Runs a WASI module that owns nothing.")
    parser.add_argument("--memory-mib", type=int, default=DEFAULT_MEMORY_MIB, metavar="N", help="its memory at most")
    parser.add_argument("--env", action="append", default=[], metavar="NAME", help="a variable that it may see")
    parser.add_argument("module", help="a WASI preview 1 module, in the binary format or as text")
    parser.add_argument("arguments", nargs="*", help="what it gets as its arguments")
    options = parser.parse_args(arguments)
    env = {name: os.environ[name] for name in options.env if name in os.environ}
    return run(options.module, options.arguments, env, options.memory_mib)


if __name__ == "__main__":
    sys.exit(main())
