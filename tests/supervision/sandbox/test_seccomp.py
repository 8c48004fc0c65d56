"""The filter of system calls: what its program answers, by an interpreter of it, and that the kernel takes it."""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utter_runner.supervision.sandbox import seccomp

ALLOW = seccomp.ALLOW
MACHINES = list(seccomp.MACHINES)
SOCKET = {"x86_64": 41, "aarch64": 198}
CLONE = {"x86_64": 56, "aarch64": 220}
IOCTL = {"x86_64": 16, "aarch64": 29}
READ = {"x86_64": 0, "aarch64": 63}
UNSHARE = {"x86_64": 272, "aarch64": 97}
NEW_USER = 0x10000000


def refused(number: int) -> int:
    return 0x00050000 | number


def run(code: bytes, machine: int, call: int, *arguments: int) -> int:
    """What the kernel would do: classic BPF over struct seccomp_data."""
    data = struct.pack("=IIQ6Q", call, machine, 0, *(*arguments, 0, 0, 0, 0, 0, 0)[:6])
    program = [struct.unpack_from("=HBBI", code, at) for at in range(0, len(code), 8)]
    at, register = 0, 0
    while True:
        operation, if_true, if_false, value = program[at]
        at += 1
        if operation == 0x20:
            register = struct.unpack_from("=I", data, value)[0]
        elif operation == 0x06:
            return int(value)
        else:
            test = {0x15: register == value, 0x35: register >= value, 0x45: bool(register & value)}[operation]
            at += if_true if test else if_false


@pytest.mark.parametrize("machine", MACHINES)
def test_what_no_plugin_needs_is_refused_whatever_it_may_do(machine: str) -> None:
    for network in (False, True):
        for spawn in (False, True):
            code = seccomp.assemble(machine, network=network, spawn=spawn)
            calls = seccomp.refused_calls(machine, spawn=spawn)
            for name in ("ptrace", "process_vm_readv", "bpf", "mount", "io_uring_setup", "userfaultfd", "pidfd_getfd"):
                assert run(code, seccomp.MACHINES[machine], calls[name]) == refused(errno.EPERM), name
            assert run(code, seccomp.MACHINES[machine], READ[machine], 0, 0, 100) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("family", "network", "allowed"),
    [
        (family, network, family == 1 or (network and family in {2, 10, 16}))
        for family in (1, 2, 10, 16, 17, 38, 40)
        for network in (False, True)
    ],
)
def test_sockets_by_their_family(machine: str, family: int, network: bool, allowed: bool) -> None:
    code = seccomp.assemble(machine, network=network, spawn=False)
    answer = run(code, seccomp.MACHINES[machine], SOCKET[machine], family, 1, 0)
    assert answer == (ALLOW if allowed else refused(errno.EAFNOSUPPORT))


@pytest.mark.parametrize("machine", MACHINES)
def test_a_new_user_namespace_needs_the_permission_to_start_programs(machine: str) -> None:
    number = seccomp.MACHINES[machine]
    for spawn, answer in ((False, refused(errno.EPERM)), (True, ALLOW)):
        code = seccomp.assemble(machine, network=True, spawn=spawn)
        assert run(code, number, CLONE[machine], NEW_USER | 0x11) == answer
        assert run(code, number, UNSHARE[machine], NEW_USER) == answer
        # Threads and children are everybody's.
        assert run(code, number, CLONE[machine], 0x3D0F00) == ALLOW
        # The flags of this one cannot be seen, and the C library has another way.
        assert run(code, number, 435) == (ALLOW if spawn else refused(errno.ENOSYS))


@pytest.mark.parametrize("machine", MACHINES)
def test_nobody_types_into_a_terminal_and_other_requests_pass(machine: str) -> None:
    code = seccomp.assemble(machine, network=False, spawn=False)
    number = seccomp.MACHINES[machine]
    assert run(code, number, IOCTL[machine], 0, 0x5412) == refused(errno.EPERM)
    assert run(code, number, IOCTL[machine], 0, 0x541C) == refused(errno.EPERM)
    # The high half is not what the kernel looks at.
    assert run(code, number, IOCTL[machine], 0, 0x5412 | 1 << 32) == refused(errno.EPERM)
    assert run(code, number, IOCTL[machine], 0, 0x5401) == ALLOW


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1))
def test_every_call_is_answered_and_other_machines_end_the_process(machine: int, call: int, argument: int) -> None:
    code = seccomp.assemble("x86_64", network=False, spawn=False)
    answer = run(code, machine, call, argument, argument)
    if machine != seccomp.MACHINES["x86_64"]:
        assert answer == seccomp.KILL
    else:
        assert answer in {ALLOW, refused(errno.EPERM), refused(errno.ENOSYS), refused(errno.EAFNOSUPPORT)}


def test_the_calls_of_the_other_width_are_not_there() -> None:
    code = seccomp.assemble("x86_64", network=True, spawn=True)
    assert run(code, seccomp.MACHINES["x86_64"], 0x40000000 | 41, 2) == refused(errno.ENOSYS)


@pytest.mark.skipif(bool(seccomp.problem()), reason=seccomp.problem() or "-")
def test_the_kernel_takes_it() -> None:
    code = (
        "import os, socket\n"
        "from utter_runner.supervision.sandbox import seccomp\n"
        "seccomp.install(seccomp.assemble(os.uname().machine, network=False, spawn=False))\n"
        "socket.socketpair()\n"
        "for make in (lambda: socket.socket(), lambda: os.unshare(0) if hasattr(os, 'unshare') else os.chroot('/')):\n"
        "    try: make()\n"
        "    except OSError as error: print(error.errno)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == [str(errno.EAFNOSUPPORT), str(errno.EPERM)]


def test_a_machine_whose_calls_are_not_known_has_no_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    known = os.uname()
    monkeypatch.setattr(os, "uname", lambda: os.uname_result((*known[:4], "riscv64")))
    assert "this machine is riscv64" in seccomp.problem()
