"""A filter of system calls: which are refused, and the program for the kernel that refuses them.

Rules here: the standard library alone, and no import of the runner's, because it is loaded by a bare interpreter inside
the sandbox. `assemble` is pure; `install` is the only one that acts, on the process that calls it, for good.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

# Those of <linux/filter.h>: load a word, jump if equal, at least or with any of these bits, return.
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
# Offsets in struct seccomp_data; the low half of an argument comes first on both machines.
_NUMBER, _MACHINE, _ARGUMENTS = 0, 4, 16

ALLOW = 0x7FFF0000
KILL = 0x80000000
_ERROR = 0x00050000
_X32 = 0x40000000
_NEW_USER = 0x10000000
# Typing into the terminal that one is on, and the same for a console.
_TTY_INPUT = (0x5412, 0x541C)
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16

MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""By `os.uname().machine`, how the kernel calls it."""

# Numbers on x86_64 and on aarch64; None where there is none.
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    # Looking into other processes and taking from them.
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "pidfd_getfd": (438, 438),
    "kcmp": (312, 272), "process_madvise": (440, 440), "process_mrelease": (448, 448), "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    # Large parts of the kernel that no plugin needs, and through which it is attacked.
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "keyctl": (250, 219),
    "add_key": (248, 217), "request_key": (249, 218), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427), "modify_ldt": (154, None), "lookup_dcookie": (212, 18), "uselib": (134, None),
    # The file system as a whole.
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "move_mount": (429, 429),
    "open_tree": (428, 428), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265), "fanotify_init": (300, 262), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "swapon": (167, 224), "swapoff": (168, 225),
    # The machine.
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "reboot": (169, 142), "acct": (163, 89), "syslog": (103, 116),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "clock_adjtime": (305, 266), "adjtimex": (159, 171),
    "iopl": (172, None), "ioperm": (173, None), "sethostname": (170, 161), "setdomainname": (171, 162),
    "vhangup": (153, 58), "setns": (308, 268),
}  # fmt: skip
# Browsers need these to confine parts of themselves, so that whoever may start programs has them.
_NAMESPACES: dict[str, tuple[int | None, int | None]] = {"unshare": (272, 97), "chroot": (161, 51)}
_SOCKET, _SOCKETPAIR = (41, 198), (53, 199)
_CLONE, _CLONE3, _IOCTL = (56, 220), (435, 435), (16, 29)

_SET_SECCOMP, _NO_NEW_PRIVILEGES, _FILTER_MODE = 22, 38, 2


def refused_calls(machine: str, *, spawn: bool) -> dict[str, int]:
    """The system calls that are refused whatever their arguments are, by name."""
    column = list(MACHINES).index(machine)
    table = _REFUSED if spawn else {**_REFUSED, **_NAMESPACES}
    return {name: number for name, numbers in table.items() if (number := numbers[column]) is not None}


def assemble(machine: str, *, network: bool, spawn: bool) -> bytes:
    """Return the filter, 8 bytes for each instruction.

    Args:
        machine: one of `MACHINES`.
        network: whether sockets may be others than those inside this machine.
        spawn: whether programs may be started that confine themselves.
    """
    column = list(MACHINES).index(machine)
    no = _ERROR | errno.EPERM
    code = [
        _step(_LOAD, _MACHINE),
        # Calls of another machine would have other numbers.
        *_returns_unless(_EQUAL, MACHINES[machine], KILL),
        _step(_LOAD, _NUMBER),
    ]
    if machine == "x86_64":
        code += _returns_if(_AT_LEAST, _X32, _ERROR | errno.ENOSYS)
    for number in refused_calls(machine, spawn=spawn).values():
        code += _returns_if(_EQUAL, number, no)
    if not spawn:
        # Its flags lie in memory, where a filter cannot look; the C library then takes the older call.
        code += _returns_if(_EQUAL, _CLONE3[column], _ERROR | errno.ENOSYS)
        code += _block(_CLONE[column], 0, [*_returns_if(_ANY_BIT, _NEW_USER, no)], ALLOW)
    families = (_UNIX, _INET, _INET6, _NETLINK) if network else (_UNIX,)
    allowed = [step for family in families for step in _returns_if(_EQUAL, family, ALLOW)]
    for call in (_SOCKET, _SOCKETPAIR):
        code += _block(call[column], 0, allowed, _ERROR | errno.EAFNOSUPPORT)
    typed = [step for request in _TTY_INPUT for step in _returns_if(_EQUAL, request, no)]
    code += _block(_IOCTL[column], 1, typed, ALLOW)
    return b"".join([*code, _step(_RETURN, ALLOW)])


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _returns_if(test: int, value: int, answer: int) -> list[bytes]:
    return [_step(test, value, 0, 1), _step(_RETURN, answer)]


def _returns_unless(test: int, value: int, answer: int) -> list[bytes]:
    return [_step(test, value, 1, 0), _step(_RETURN, answer)]


def _block(number: int, argument: int, tests: list[bytes], otherwise: int) -> list[bytes]:
    """Judge one call by the low half of an argument. It always answers, for it has overwritten the number."""
    inner = [_step(_LOAD, _ARGUMENTS + 8 * argument), *tests, _step(_RETURN, otherwise)]
    return [_step(_EQUAL, number, 0, len(inner)), *inner]


def problem() -> str:
    """Why this machine has no such filters, or nothing."""
    machine = os.uname().machine
    if machine not in MACHINES:
        return f"it knows the system calls of {' and '.join(MACHINES)}, and this machine is {machine}"
    if not os.path.exists("/proc/sys/kernel/seccomp/actions_avail"):  # noqa: PTH110 - pathlib is slow to import
        return "this kernel has no seccomp filters"
    return ""


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def install(code: bytes) -> None:
    """Put a filter on this process and all that it starts.

    Raises:
        OSError: the kernel refused it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    program = _Program(len(code) // 8, code)
    for arguments in (
        (_NO_NEW_PRIVILEGES, 1, 0, 0, 0),
        (_SET_SECCOMP, _FILTER_MODE, ctypes.byref(program), 0, 0),
    ):
        if libc.prctl(*arguments) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"the filter of system calls is refused: {os.strerror(number)}")
