"""Runs one WASI preview 1 module on this process's stdin, stdout and stderr.

Rules here: no directory, no socket and no variable reaches the module unless the caller of `run` hands it over; its
memory and its stack are bounded; what cannot be run at all ends with the exit code that asks not to be restarted, and
the last line on stderr says why in one sentence.
"""

from __future__ import annotations

import re
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import wasmtime

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DEFAULT_MEMORY_MIB: Final = 256
MAX_MODULE: Final = 64 * 2**20
"""The largest module, in bytes."""
MAX_STACK: Final = 2**20
"""The stack of the module, in bytes."""
MAX_TABLE_ELEMENTS: Final = 1_000_000
EXIT_CANNOT_RUN: Final = 125
"""Do not start it again, for nothing would be different."""
EXIT_TRAPPED: Final = 134
"""What a process that was aborted ends with in a shell, and a trapped module in the command `wasmtime`."""

_WASI: Final = "wasi_snapshot_preview1"


class CannotRunError(Exception):
    """A module that cannot be run; the message names it and says why."""


def run(path: str, arguments: Sequence[str], env: Mapping[str, str], memory_mib: int) -> int:
    """Run a module until it ends.

    Args:
        path: the module, in the binary format or as text (WAT).
        arguments: what it gets behind its own name.
        env: the variables that it sees, and no others.
        memory_mib: how much memory it may have, in MiB; `memory.grow` fails beyond.

    Returns:
        Its exit code; 134 if it trapped, 125 if it cannot be run.
    """
    # Python would only take note of SIGINT, and not get to act on it while the module runs.
    with suppress(ValueError):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    name = Path(path).name
    try:
        store, start = _prepare(path, [name, *arguments], env, memory_mib)
    except CannotRunError as error:
        return _end(str(error), EXIT_CANNOT_RUN)
    try:
        start(store)
    except wasmtime.ExitTrap as end:
        return end.code
    except (wasmtime.Trap, wasmtime.WasmtimeError) as trap:
        return _end(f"{str(trap).rstrip()}\n{name} trapped: {_reason(trap)}.", EXIT_TRAPPED)
    return 0


def _end(words: str, code: int) -> int:
    print(words, file=sys.stderr, flush=True)  # noqa: T201 - stderr is the plugin's log
    return code


def _reason(trap: Exception) -> str:
    """The last line of a trap's message, which is the cause; the rest of it is the backtrace."""
    return re.sub(r"^(?:\d+: )?wasm trap: ", "", str(trap).strip().rpartition("\n")[2].strip())


def _prepare(
    path: str, argv: list[str], env: Mapping[str, str], memory_mib: int
) -> tuple[wasmtime.Store, wasmtime.Func]:
    engine = wasmtime.Engine(_settings())
    module = _compile(engine, path)
    linker = wasmtime.Linker(engine)
    linker.define_wasi()
    store = wasmtime.Store(engine)
    wasi = wasmtime.WasiConfig()
    wasi.argv = argv
    wasi.env = list(env.items())
    wasi.inherit_stdin()
    wasi.inherit_stdout()
    wasi.inherit_stderr()
    store.set_wasi(wasi)
    store.set_limits(
        memory_size=memory_mib * 2**20, table_elements=MAX_TABLE_ELEMENTS, instances=1, tables=8, memories=1
    )
    _check_imports(path, module, linker, store)
    try:
        start = linker.instantiate(store, module).exports(store).get("_start")
    except wasmtime.WasmtimeError as error:
        message = f"{path} cannot be started with at most {memory_mib} MiB of memory: {_one_line(error)}"
        raise CannotRunError(message) from None
    except wasmtime.Trap as trap:
        raise CannotRunError(f"{path} trapped while it was being loaded: {_reason(trap)}.") from None
    kind = start.type(store) if isinstance(start, wasmtime.Func) else None
    if kind is None or kind.params or kind.results or not isinstance(start, wasmtime.Func):
        raise CannotRunError(
            f"{path} exports no function _start without parameters: build it as a WASI command, not as a library."
        )
    return store, start


def _settings() -> wasmtime.Config:
    """The engine's: bounded, and with compiled code kept in the user's cache, so that the next start is quick."""
    config = wasmtime.Config()
    config.max_wasm_stack = MAX_STACK
    config.wasm_threads = False
    # Without a home, or with one that cannot be written to, there is no cache.
    with suppress(wasmtime.WasmtimeError):
        config.cache = True
    return config


def _compile(engine: wasmtime.Engine, path: str) -> wasmtime.Module:
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_MODULE + 1)
    except OSError as error:
        raise CannotRunError(f"The module {path} cannot be read: {error.strerror}.") from None
    if len(data) > MAX_MODULE:
        raise CannotRunError(f"The module {path} is larger than {MAX_MODULE} bytes, which is the limit.")
    try:
        return wasmtime.Module(engine, data if data.startswith(b"\0asm") else bytes(wasmtime.wat2wasm(data)))
    except wasmtime.WasmtimeError as error:
        raise CannotRunError(f"{path} is no WebAssembly module: {_one_line(error)}") from None


def _check_imports(path: str, module: wasmtime.Module, linker: wasmtime.Linker, store: wasmtime.Store) -> None:
    for wanted in module.imports:
        offered = wanted.module == _WASI and wanted.name is not None
        try:
            offered = offered and linker.get(store, wanted.module, wanted.name or "") is not None
        except wasmtime.WasmtimeError:
            offered = False
        if not offered:
            raise CannotRunError(
                f"{path} wants {wanted.name!r} of {wanted.module!r}, which is not offered: only the functions of "
                f"{_WASI} are."
            )


def _one_line(error: Exception) -> str:
    """What an error says, on one line."""
    return "; ".join(line.strip() for line in str(error).splitlines() if line.strip())[:500]
