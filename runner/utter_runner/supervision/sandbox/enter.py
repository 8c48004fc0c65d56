"""The last step into the sandbox: a process that confines itself and then becomes the plugin.

Rules here: the standard library alone, because it is run by a bare interpreter (`python -I -S`). Whatever fails ends
the process: nothing is started that is less confined than it should be. Its arguments are a JSON object, which
`Orders` in compose.py describes, and the program with its own.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from typing import Any

from utter_runner.supervision.sandbox import landlock, seccomp

EXIT_CODE = 126
_DROP_FROM_BOUNDS = 24
_NO_NEW_PRIVILEGES = 38
_CAPABILITIES_VERSION = 0x20080522
_LAST_CAPABILITY = 63


def main(arguments: list[str]) -> None:
    """Confine this process and become the program."""
    orders, argv = json.loads(arguments[0]), arguments[1:]
    # See `_aside` in compose.py.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for number, descriptor in enumerate(orders["streams"] or ()):
        os.dup2(descriptor, number)
        os.close(descriptor)
    try:
        confine(orders)
        os.execv(argv[0], argv)  # noqa: S606 - there is to be no shell
    except OSError as error:
        sys.stderr.write(f"it cannot be started in its sandbox: {error.strerror or error} ({argv[0]})\n")
        sys.stderr.flush()
        os._exit(EXIT_CODE)


def confine(orders: dict[str, Any]) -> None:
    """Do what the orders say, for good.

    Raises:
        OSError: something was refused.
    """
    if ctypes.CDLL(None).prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
        raise OSError(1, "no_new_privs is refused")
    if orders["drop_capabilities"]:
        drop_capabilities()
    wanted = orders["landlock"]
    if wanted is not None:
        landlock.restrict(
            wanted["abi"], wanted["read"], wanted["write"], network=wanted["network"], abstract=wanted["abstract"]
        )
    filtered = orders["seccomp"]
    if filtered is not None:
        code = seccomp.assemble(os.uname().machine, network=filtered["network"], spawn=filtered["spawn"])
        seccomp.install(code)


def drop_capabilities() -> None:
    """Give up all that root may do beyond other users, also for programs that are started.

    Raises:
        OSError: the kernel refused it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    for number in range(_LAST_CAPABILITY + 1):
        # The kernel has fewer, and says so of the first that it does not have.
        if libc.prctl(_DROP_FROM_BOUNDS, number, 0, 0, 0) != 0:
            break
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0)
    nothing = (ctypes.c_uint32 * 6)()
    if libc.capset(header, nothing) != 0:
        raise OSError(ctypes.get_errno(), "the capabilities of root cannot be given up")
