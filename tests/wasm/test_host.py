"""The host of modules, as a real process: what a module gets, what it does not get, and how it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import wasmtime

from utter_runner.wasm.host import EXIT_CANNOT_RUN, EXIT_TRAPPED, MAX_MODULE

WASI = "wasi_snapshot_preview1"
TYPES = {
    "args_sizes_get": "(param i32 i32) (result i32)",
    "args_get": "(param i32 i32) (result i32)",
    "environ_sizes_get": "(param i32 i32) (result i32)",
    "environ_get": "(param i32 i32) (result i32)",
    "fd_prestat_get": "(param i32 i32) (result i32)",
    "fd_read": "(param i32 i32 i32 i32) (result i32)",
    "fd_write": "(param i32 i32 i32 i32) (result i32)",
    "path_open": "(param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)",
    "proc_exit": "(param i32)",
    "random_get": "(param i32 i32) (result i32)",
    "sock_accept": "(param i32 i32 i32) (result i32)",
    "sock_recv": "(param i32 i32 i32 i32 i32 i32) (result i32)",
    "sock_send": "(param i32 i32 i32 i32 i32) (result i32)",
}


def module(start: str, *imports: str, more: str = '(memory (export "memory") 1)') -> str:
    """A module that does `start`."""
    lines = [f'(import "{WASI}" "{name}" (func ${name} {TYPES[name]}))' for name in imports]
    return f'(module {" ".join(lines)} {more} (func (export "_start") {start}))'


def exits_with(value: str, *imports: str, more: str = '(memory (export "memory") 1)') -> str:
    """A module whose exit code is a number that it found out."""
    return module(f"(call $proc_exit {value})", "proc_exit", *imports, more=more)


class Host:
    """Runs modules in a directory, with a home and an environment of their own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.env = {"PATH": os.environ["PATH"], "HOME": str(directory), "SECRET": "s3cret", "GIVEN": "yes"}

    def run(
        self, text: str | bytes, *arguments: str, options: tuple[str, ...] = (), stdin: bytes = b""
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a module that is given as text or in the binary format."""
        (self.directory / "m.wasm").write_bytes(text.encode() if isinstance(text, str) else text)
        return self.start("m.wasm", *arguments, options=options, stdin=stdin)

    def start(
        self, name: str, *arguments: str, options: tuple[str, ...] = (), stdin: bytes = b""
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a module by its name."""
        argv = [sys.executable, "-P", "-m", "utter_runner.wasm", *options, "--", name, *arguments]
        return subprocess.run(
            argv, cwd=self.directory, env=self.env, input=stdin, capture_output=True, timeout=60, check=False
        )


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def last_line(done: subprocess.CompletedProcess[bytes]) -> str:
    return done.stderr.decode().splitlines()[-1]


# ---- what it gets


ECHO = """
(loop $more
  (i32.store (i32.const 0) (i32.const 64))
  (i32.store (i32.const 4) (i32.const 60000))
  (if (call $fd_read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)) (then unreachable))
  (if (i32.load (i32.const 8)) (then
    (i32.store (i32.const 4) (i32.load (i32.const 8)))
    (loop $rest
      (if (call $fd_write (i32.const FD) (i32.const 0) (i32.const 1) (i32.const 8)) (then unreachable))
      (i32.store (i32.const 0) (i32.add (i32.load (i32.const 0)) (i32.load (i32.const 8))))
      (i32.store (i32.const 4) (i32.sub (i32.load (i32.const 4)) (i32.load (i32.const 8))))
      (br_if $rest (i32.load (i32.const 4))))
    (br $more))))
"""


@pytest.mark.parametrize("form", ["text", "binary"])
def test_stdin_and_stdout_are_its_own_and_its_end_is_the_process_s(host: Host, form: str) -> None:
    text = module(ECHO.replace("FD", "1"), "fd_read", "fd_write")
    data = os.urandom(1_000_000)
    done = host.run(text if form == "text" else bytes(wasmtime.wat2wasm(text)), stdin=data)
    assert (done.returncode, done.stdout, done.stderr) == (0, data, b"")


def test_stderr_is_the_log(host: Host) -> None:
    done = host.run(module(ECHO.replace("FD", "2"), "fd_read", "fd_write"), stdin=b"a line\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"a line\n")


def test_its_exit_code_is_the_process_s(host: Host) -> None:
    for code in (7, EXIT_CANNOT_RUN):
        assert host.run(exits_with(f"(i32.const {code})")).returncode == code


def write_out(get: str, sizes: str) -> str:
    """A module that writes its arguments or variables to stdout, each with a zero at its end."""
    return module(
        f"""
        (drop (call ${sizes} (i32.const 0) (i32.const 4)))
        (i32.store (i32.const 12) (i32.load (i32.const 4)))
        (drop (call ${get} (i32.const 1024) (i32.const 8192)))
        (i32.store (i32.const 8) (i32.const 8192))
        (drop (call $fd_write (i32.const 1) (i32.const 8) (i32.const 1) (i32.const 16)))
        """,
        get,
        sizes,
        "fd_write",
    )


def test_it_gets_its_arguments(host: Host) -> None:
    done = host.run(write_out("args_get", "args_sizes_get"), "-v", "a b", "--env")
    assert done.stdout.split(b"\0") == [b"m.wasm", b"-v", b"a b", b"--env", b""]


def test_it_sees_the_variables_that_are_named_and_no_others(host: Host) -> None:
    text = write_out("environ_get", "environ_sizes_get")
    assert host.run(text).stdout == b""
    done = host.run(text, options=("--env", "GIVEN", "--env", "NOT_THERE"))
    assert done.stdout == b"GIVEN=yes\0"


def test_it_has_random_numbers(host: Host) -> None:
    assert host.run(exits_with("(call $random_get (i32.const 0) (i32.const 8))", "random_get")).returncode == 0


# ---- what it does not get


def successes(call: str, *imports: str, more: str = '(memory (export "memory") 1)') -> str:
    """A module that tries `call` with the descriptors 0 to 9, in `$fd`, and exits with how often it succeeded."""
    start = f"""
    (local $fd i32) (local $count i32)
    (loop $next
      (local.set $count (i32.add (local.get $count) (i32.eqz {call})))
      (local.set $fd (i32.add (local.get $fd) (i32.const 1)))
      (br_if $next (i32.lt_u (local.get $fd) (i32.const 10))))
    (call $proc_exit (local.get $count))
    """
    return module(start, "proc_exit", *imports, more=more)


def test_the_tries_of_these_tests_would_succeed_if_they_could(host: Host) -> None:
    call = "(call $fd_write (local.get $fd) (i32.const 0) (i32.const 0) (i32.const 8))"
    # stdout and stderr.
    assert host.run(successes(call, "fd_write")).returncode == 2


def test_it_has_no_directory(host: Host) -> None:
    call = "(call $fd_prestat_get (local.get $fd) (i32.const 0))"
    assert host.run(successes(call, "fd_prestat_get")).returncode == 0


@pytest.mark.parametrize("path", ["/etc/passwd", "m.wasm"])
def test_it_opens_no_file(host: Host, path: str) -> None:
    more = f'(memory (export "memory") 1) (data (i32.const 64) "{path}")'
    call = (
        f"(call $path_open (local.get $fd) (i32.const 0) (i32.const 64) (i32.const {len(path)}) (i32.const 0) "
        "(i64.const 2) (i64.const 2) (i32.const 0) (i32.const 0))"
    )
    assert host.run(successes(call, "path_open", more=more)).returncode == 0


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("sock_accept", "(i32.const 0) (i32.const 0)"),
        ("sock_recv", "(i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 8)"),
        ("sock_send", "(i32.const 0) (i32.const 0) (i32.const 0) (i32.const 8)"),
    ],
)
def test_it_has_no_socket(host: Host, name: str, arguments: str) -> None:
    assert host.run(successes(f"(call ${name} (local.get $fd) {arguments})", name)).returncode == 0


@pytest.mark.parametrize("name", ["sock_open", "sock_connect"])
def test_it_makes_no_socket(host: Host, name: str) -> None:
    # There are hosts that offer this.
    done = host.run(f'(module (import "{WASI}" "{name}" (func)) (func (export "_start")))')
    assert done.returncode == EXIT_CANNOT_RUN
    assert last_line(done) == (
        f"m.wasm wants '{name}' of '{WASI}', which is not offered: only the functions of {WASI} are."
    )


def test_its_memory_is_bounded(host: Host) -> None:
    # 16 MiB are 256 pages, and it has one: 255 more will do, and 256 will not.
    grown = "(i32.eq (memory.grow (i32.const {})) (i32.const -1))"
    options = ("--memory-mib", "16")
    assert host.run(exits_with(grown.format(255)), options=options).returncode == 0
    assert host.run(exits_with(grown.format(256)), options=options).returncode == 1
    # Without the option 256 MiB are the limit.
    assert host.run(exits_with(grown.format(4095))).returncode == 0
    assert host.run(exits_with(grown.format(4096))).returncode == 1


def test_what_it_needs_from_the_start_is_bounded_too(host: Host) -> None:
    done = host.run('(module (memory 257) (func (export "_start")))', options=("--memory-mib", "16"))
    assert done.returncode == EXIT_CANNOT_RUN
    assert last_line(done).startswith(
        "m.wasm cannot be started with at most 16 MiB of memory: memory minimum size of 257"
    )
    for more in ("(table 1000001 funcref)", "(memory 1) (memory 1)"):
        assert host.run(f'(module {more} (func (export "_start")))').returncode == EXIT_CANNOT_RUN


# ---- how it fails


def test_a_trap_says_what_and_where(host: Host) -> None:
    done = host.run('(module (func $work unreachable) (func (export "_start") (call $work)))')
    assert done.returncode == EXIT_TRAPPED
    assert b"work" in done.stderr
    assert last_line(done) == "m.wasm trapped: wasm `unreachable` instruction executed."
    beyond = module("(i32.store (i32.const 70000) (i32.const 0))")
    assert last_line(host.run(beyond)) == "m.wasm trapped: out of bounds memory access."


def test_its_stack_is_bounded(host: Host) -> None:
    done = host.run('(module (func $f (export "_start") (call $f)))')
    assert (done.returncode, last_line(done)) == (EXIT_TRAPPED, "m.wasm trapped: call stack exhausted.")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"#!/bin/sh\n", "m.wasm is no WebAssembly module: "),
        (b"\0asm\x0d\0\0\0", "m.wasm is no WebAssembly module: "),
        (b"\xff\xfe", "m.wasm is no WebAssembly module: input was not valid utf-8"),
        (b"(module)", "m.wasm exports no function _start without parameters: build it as a WASI command"),
        (b'(module (func (export "_start") (param i32)))', "m.wasm exports no function _start without parameters"),
        (b'(module (func (export "_start") (result i32) i32.const 1))', "m.wasm exports no function _start without"),
        (b'(module (memory (export "_start") 1))', "m.wasm exports no function _start without parameters"),
        (
            b'(module (import "env" "system" (func)) (func (export "_start")))',
            "m.wasm wants 'system' of 'env', which is not offered",
        ),
        (
            f'(module (import "{WASI}" "fd_read" (func)) (func (export "_start")))'.encode(),
            "m.wasm cannot be started with at most 256 MiB of memory: incompatible import type",
        ),
        (
            b'(module (func $s unreachable) (start $s) (func (export "_start")))',
            "m.wasm trapped while it was being loaded: wasm `unreachable` instruction executed.",
        ),
        (b" " * (MAX_MODULE + 1), f"The module m.wasm is larger than {MAX_MODULE} bytes, which is the limit."),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_what_cannot_be_run_says_so_and_asks_not_to_be_restarted(host: Host, content: bytes, complaint: str) -> None:
    done = host.run(content)
    assert done.returncode == EXIT_CANNOT_RUN
    assert last_line(done).startswith(complaint)
    assert b"Traceback" not in done.stderr
    assert done.stdout == b""


def test_a_module_that_is_not_there(host: Host) -> None:
    (host.directory / "d").mkdir()
    for name, why in (("gone.wasm", "No such file or directory"), ("d", "Is a directory")):
        done = host.start(name)
        assert (done.returncode, last_line(done)) == (EXIT_CANNOT_RUN, f"The module {name} cannot be read: {why}.")


# ---- the cache


def test_compiled_code_is_kept_in_the_user_s_cache_if_there_is_one(host: Host) -> None:
    text = exits_with("(i32.const 3)")
    assert host.run(text).returncode == 3
    assert list((host.directory / ".cache" / "wasmtime").rglob("*"))
    # Neither one that is broken nor one that cannot be made is a reason not to run.
    for path in (host.directory / ".cache").rglob("*"):
        if path.is_file():
            path.write_bytes(b"junk")
    assert host.run(text).returncode == 3
    host.env["HOME"] = "/dev/null"
    assert host.run(text).returncode == 3
    del host.env["HOME"]
    host.env["XDG_CACHE_HOME"] = str(host.directory / "m.wasm")
    assert host.run(text).returncode == 3
