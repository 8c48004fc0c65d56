"""A process that reads the audio ring, well or badly: `ring_reader.py BEHAVIOUR RING_FD WAKE_FD`.

It says "ready" when it has read for the first time, or done its worst; then it goes on until its stdin ends.

    good      reads every frame, and says how far it has come; what is wrong it says instead
    stopped   reads once and stops itself
    slow      takes one byte of the pipe for each frame that it reads, from the beginning, and never catches up
    closes    closes its pipe
    deaf      never reads its pipe
    stuffs    makes its pipe as small as it can, fills it itself, and keeps both ends
    dies      kills itself
    tampers   tries to change the ring in every way that it can think of; prints what succeeded
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import mmap
import os
import select
import signal
import sys
from array import array
from contextlib import suppress
from pathlib import Path

from utter_protocol.ring import HEADER_SIZE
from utter_sdk.ring import Overrun, RingReader

F_SETPIPE_SZ = 1031
PUNCH_HOLE = 0x02 | 0x01

BEHAVIOUR, RING, WAKE = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


def say(text: str) -> None:
    """Write a line to whoever started this."""
    os.write(1, text.encode() + b"\n")


def wait_end() -> None:
    """Until the test is over."""
    while os.read(0, 4096):
        pass


def good() -> None:
    """Read frames whose sample is their own number."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(WAKE, select.POLLIN)
    with RingReader(RING) as ring:
        at = 0
        say("ready")
        while {fd for fd, _ in poll.poll()} == {WAKE}:
            os.read(WAKE, 65536)
            while at < (position := ring.position):
                if ring.read(at, position - at) != array("f", range(at, position)).tobytes():
                    say(f"wrong frames from {at} to {position}")
                at = position
                say(str(at))


def slow() -> None:
    """Be always behind."""
    with RingReader(RING) as ring:
        at = 0
        say("ready")
        while os.read(WAKE, 1):
            with suppress(ValueError):
                try:
                    ring.read(at, 1)
                    at += 1
                except Overrun as overrun:
                    at = overrun.oldest


def stuffs() -> None:
    """Fill the pipe from this side."""
    fcntl.fcntl(WAKE, F_SETPIPE_SZ, 4096)
    writing = os.open(f"/proc/self/fd/{WAKE}", os.O_WRONLY | os.O_NONBLOCK)
    with suppress(BlockingIOError):
        while True:
            os.write(writing, bytes(4096))
    say("ready")
    wait_end()


def reopened(flags: int, path: str = f"/proc/self/fd/{RING}") -> None:
    """Open the ring for writing, and write."""
    fd = os.open(path, flags)
    try:
        os.pwrite(fd, b"\xff" * 64, HEADER_SIZE)
    finally:
        os.close(fd)


def runners_own() -> None:
    """Write through the descriptor of the process that made the ring."""
    mine = os.fstat(RING)
    found = False
    for entry in Path(f"/proc/{os.getppid()}/fd").iterdir():
        with suppress(FileNotFoundError):
            if os.path.samestat(entry.stat(), mine):
                found = True
                reopened(os.O_RDWR, str(entry))
    if not found:
        say("the runner's own descriptor was not found")


def punch_hole() -> None:
    """Have the kernel put zeros there."""
    libc = ctypes.CDLL(None, use_errno=True)
    size = ctypes.c_long(4096)
    if libc.fallocate(RING, PUNCH_HOLE, ctypes.c_long(0), size):
        raise OSError(ctypes.get_errno(), "fallocate")


def protect() -> None:
    """Map for reading, and make that writable."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    address = libc.mmap(None, ctypes.c_size_t(4096), mmap.PROT_READ, mmap.MAP_SHARED, RING, ctypes.c_long(0))
    if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(4096), mmap.PROT_READ | mmap.PROT_WRITE):
        raise OSError(ctypes.get_errno(), "mprotect")


SIZE = os.fstat(RING).st_size
FORBIDDEN = {
    "write": lambda: os.pwrite(RING, b"\xff" * 64, HEADER_SIZE),
    "map for writing": lambda: mmap.mmap(RING, SIZE),
    "make a mapping writable": protect,
    "shrink": lambda: os.ftruncate(RING, 0),
    "grow": lambda: os.ftruncate(RING, SIZE + 1),
    "allocate": lambda: os.posix_fallocate(RING, SIZE, 4096),
    "punch a hole": punch_hole,
    "open for reading and writing": lambda: reopened(os.O_RDWR),
    "open for writing": lambda: reopened(os.O_WRONLY),
    "open and truncate": lambda: reopened(os.O_RDWR | os.O_TRUNC),
    "open for appending": lambda: reopened(os.O_WRONLY | os.O_APPEND),
    "write through the runner's own": runners_own,
    "seal": lambda: fcntl.fcntl(RING, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE),
}
RUDE = {
    # Allowed by the kernel, and nobody else's loss.
    "forbid everybody to open it": lambda: os.fchmod(RING, 0),
    "lock it": lambda: fcntl.flock(RING, fcntl.LOCK_EX | fcntl.LOCK_NB),
    "move the position": lambda: os.lseek(RING, 0, os.SEEK_END),
    "have it block, or not": lambda: (os.set_blocking(RING, False), os.set_blocking(WAKE, False)),
}


def tampers() -> None:
    """Try everything; say what should not have succeeded."""
    succeeded = []
    for name, attempt in FORBIDDEN.items():
        try:
            attempt()
            succeeded.append(name)
        except OSError:
            continue
    for act in RUDE.values():
        with suppress(OSError):
            act()
    say(f"succeeded: {json.dumps(succeeded)}")
    say("ready")
    wait_end()


def simple() -> None:
    """What takes a line."""
    with RingReader(RING) as ring:
        ring.read(0, ring.position)
        if BEHAVIOUR == "closes":
            os.close(WAKE)
        say("ready")
        if BEHAVIOUR in ("stopped", "dies"):
            os.kill(os.getpid(), signal.SIGSTOP if BEHAVIOUR == "stopped" else signal.SIGKILL)
        wait_end()


{"good": good, "slow": slow, "stuffs": stuffs, "tampers": tampers}.get(BEHAVIOUR, simple)()
