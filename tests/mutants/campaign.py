"""A campaign: every mutant against the tests that run what it changed, each in a process of its own.

Rules here: the tests are collected once and a mutant is put into a fork of the process that did; what is evaluated on
import (tables, defaults, classes) is imported anew in a fork of a process that has not imported it yet. A mutant is
killed by the first test that fails, by an import that fails, or by running for far longer than the tests do.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import json
import math
import mmap
import os
import re
import resource
import select
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest
from hypothesis import Phase, settings

from mutants.operators import Mutant, mutants

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGE: Final = "utter_runner.policy"
SOURCES: Final = ROOT / "runner" / "utter_runner" / "policy"
TESTS: Final = ("tests/policy", "tests/actions")
# fmt: off
_OPTIONS: Final = (
    "-q", "-p", "no:xdist", "--timeout=0", "--no-summary", "--no-header",
    # Hypothesis is imported before pytest is, for its profile.
    "-W", "ignore::pytest.PytestAssertRewriteWarning",
)
# fmt: on

# So much longer than all the tests take may a mutant compute, or wait, before it counts as killed.
_CPU_FACTOR: Final = 3.0
_CPU_SECONDS: Final = 10
_WAIT_SECONDS: Final = 600.0
_MOST_MEMORY: Final = 4 * 1024**3
# What pytest answers when all tests passed.
_PASSED: Final = 0


class Known(NamedTuple):
    """What one run of the unchanged code told: seconds per test, and which tests enter which function."""

    seconds: dict[str, float]
    entered: dict[str, list[str]]


def all_mutants(only: str = "") -> list[Mutant]:
    """Every mutant of the package, or those in whose name the expression `only` is found."""
    found = [
        mutant
        for path in sorted(SOURCES.glob("*.py"))
        for mutant in mutants(path.stem, path.read_text(encoding="utf-8"))
    ]
    return [mutant for mutant in found if re.search(only, mutant.name)]


def run(chosen: Sequence[Mutant], jobs: int, say: Callable[[str], None]) -> list[Mutant]:
    """Try mutants; return those that no test notices.

    Raises:
        RuntimeError: the tests fail without any mutant.
    """
    os.chdir(ROOT)
    settings.register_profile(
        "mutants", database=None, deadline=None, derandomize=True, phases=(Phase.explicit, Phase.generate)
    )
    settings.load_profile("mutants")
    with tempfile.TemporaryDirectory() as directory:
        told = Path(directory) / "told.json"
        inside = [mutant for mutant in chosen if mutant.where]
        pool = _Pool(1)
        pool.start("inside functions", lambda: _exchange(inside, jobs, told, say), None)
        (code,) = (code for _, code in pool.rest())
        if code != _PASSED or not told.exists():
            raise RuntimeError("The tests fail, or cannot be collected, without any mutant.")
        answer = json.loads(told.read_text(encoding="utf-8"))
    survivors = {inside[at].name for at in answer["survivors"]}
    outside = [mutant for mutant in chosen if not mutant.where]
    survivors |= set(_anew(outside, jobs, Known(**answer["known"]), say))
    return [mutant for mutant in chosen if mutant.name in survivors]


# ---- mutants inside functions


def _exchange(chosen: Sequence[Mutant], jobs: int, told: Path, say: Callable[[str], None]) -> int:
    loop = _Loop(chosen, jobs, told, say)
    return int(pytest.main([*TESTS, *_OPTIONS], plugins=[loop]))


class _Loop:
    """In place of pytest's own loop: one run as it is, then the mutants."""

    def __init__(self, chosen: Sequence[Mutant], jobs: int, told: Path, say: Callable[[str], None]) -> None:
        self._chosen, self._jobs, self._told, self._say = chosen, jobs, told, say
        self._failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed |= report.failed

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        known = self._learn(items)
        if self._failed:
            return True
        budget = round(sum(known.seconds.values()) * _CPU_FACTOR) + _CPU_SECONDS
        pool = _Pool(self._jobs)
        survivors: list[int] = []
        progress = _Progress(len(self._chosen), self._say)
        # Which test killed a mutant, told by the fork that knows: its number, counted from one, or 0.
        killers = memoryview(mmap.mmap(-1, 4 * len(self._chosen) + 4)).cast("I")
        numbers = {name: number for number, name in enumerate(items, 1)}
        names = dict(zip(numbers.values(), numbers, strict=True))
        kills: Counter[str] = Counter()

        def ended(endings: Iterator[tuple[str, int]]) -> None:
            for key, code in endings:
                mutant = self._chosen[int(key)]
                progress.one(mutant, survived=code == _PASSED)
                survivors.extend([int(key)] if code == _PASSED else [])
                if killers[int(key)]:
                    kills[names[killers[int(key)]]] += 1

        for number, mutant in enumerate(self._chosen):
            ended(pool.free())
            entering = known.entered.get(f"{mutant.module}.{mutant.where}", [])
            # Those that killed most before come first.
            tests = sorted(entering, key=lambda name: -kills[name])

            def attempt(number: int = number, mutant: Mutant = mutant, tests: list[str] = tests) -> int:
                killer = self._try(mutant, tests, items)
                killers[number] = numbers.get(killer, 0)
                return 1 if killer else _PASSED

            pool.start(str(number), attempt, budget)
        ended(pool.rest())
        told = {"survivors": survivors, "known": known._asdict()}
        self._told.write_text(json.dumps(told), encoding="utf-8")
        return True

    def _learn(self, items: dict[str, pytest.Item]) -> Known:
        seconds: dict[str, float] = {}
        entered: dict[str, set[str]] = {}
        home = str(SOURCES)
        for name, item in items.items():
            codes: set[CodeType] = set()

            def profile(frame: Any, event: str, _arg: object, codes: set[CodeType] = codes) -> None:
                if event == "call":
                    codes.add(frame.f_code)

            began = time.process_time()
            sys.setprofile(profile)
            try:
                self._run(item)
            finally:
                sys.setprofile(None)
            seconds[name] = time.process_time() - began
            for code in codes:
                path = Path(code.co_filename)
                if str(path.parent) == home:
                    where = code.co_qualname.split(".<locals>")[0]
                    entered.setdefault(f"{path.stem}.{where}", set()).add(name)
        return Known(seconds, {where: sorted(tests, key=seconds.__getitem__) for where, tests in entered.items()})

    @staticmethod
    def _run(item: pytest.Item) -> None:
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)

    def _try(self, mutant: Mutant, tests: Sequence[str], items: dict[str, pytest.Item]) -> str:
        """Return the test that noticed, or nothing."""
        function = _function(importlib.import_module(_module_name(mutant.module)), mutant.where)
        function.__code__ = _code(compile(mutant.source, function.__code__.co_filename, "exec"), mutant.where)
        for name in tests:
            self._run(items[name])
            if self._failed:
                return name
        return ""


def _module_name(module: str) -> str:
    return PACKAGE if module == "__init__" else f"{PACKAGE}.{module}"


def _function(module: ModuleType, where: str) -> FunctionType:
    found: Any = module
    for part in where.split("."):
        found = inspect.getattr_static(found, part)
    if isinstance(found, property):
        found = found.fget
    if isinstance(found, staticmethod | classmethod):
        found = found.__func__
    assert isinstance(found, FunctionType), where
    return found


def _code(code: CodeType, where: str) -> CodeType:
    for part in where.split("."):
        code = next(one for one in code.co_consts if isinstance(one, CodeType) and one.co_name == part)
    return code


# ---- mutants of what is evaluated on import


def _anew(chosen: Sequence[Mutant], jobs: int, known: Known, say: Callable[[str], None]) -> list[str]:
    for name in ("trio", "pytest_trio", "jsonschema_rs", "ada_url", "msgspec", "utter_protocol.methods"):
        importlib.import_module(name)
    assert PACKAGE not in sys.modules
    budget = round(sum(known.seconds.values()) * _CPU_FACTOR) + 2 * _CPU_SECONDS
    pool, survivors, progress = _Pool(jobs), [], _Progress(len(chosen), say)

    def ended(endings: Iterator[tuple[str, int]]) -> None:
        for key, code in endings:
            progress.one(chosen[int(key)], survived=code == _PASSED)
            survivors.extend([chosen[int(key)].name] if code == _PASSED else [])

    for number, mutant in enumerate(chosen):
        ended(pool.free())
        pool.start(str(number), lambda mutant=mutant: _import_and_test(mutant, known), budget)
    ended(pool.rest())
    return survivors


def _import_and_test(mutant: Mutant, known: Known) -> int:
    sys.meta_path.insert(0, _Finder(mutant))
    return int(pytest.main([*TESTS, *_OPTIONS, "-x"], plugins=[_FastestFirst(known.seconds)]))


class _FastestFirst:
    def __init__(self, seconds: dict[str, float]) -> None:
        self._seconds = seconds

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: self._seconds.get(item.nodeid, 0.0))


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the mutant where the module is looked for."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant
        self._path = SOURCES / f"{mutant.module}.py"

    def find_spec(self, fullname: str, _path: object, _target: object = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != _module_name(self._mutant.module):
            return None
        package = self._mutant.module == "__init__"
        return importlib.util.spec_from_file_location(
            fullname, self._path, loader=self, submodule_search_locations=[str(SOURCES)] if package else None
        )

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._mutant.source, str(self._path), "exec"), module.__dict__)  # noqa: S102 - our own source


# ---- processes


class _Pool:
    """So many forks at a time."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._running: dict[int, tuple[str, int, float]] = {}
        self._poll = select.poll()

    def start(self, key: str, work: Callable[[], int], cpu_seconds: int | None) -> None:
        """Run `work` in a fork, quietly where it has a bound; its return value is the exit status."""
        pid = os.fork()
        if pid == 0:
            code = 1
            with contextlib.suppress(BaseException):
                if cpu_seconds is not None:
                    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
                    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
                    nowhere = os.open(os.devnull, os.O_RDWR)
                    for fd in (0, 1, 2):
                        os.dup2(nowhere, fd)
                    os.close(nowhere)
                code = work()
            os._exit(code)
        fd = os.pidfd_open(pid)
        self._running[fd] = (key, pid, math.inf if cpu_seconds is None else time.monotonic() + _WAIT_SECONDS)
        self._poll.register(fd, select.POLLIN)

    def free(self) -> Iterator[tuple[str, int]]:
        """Wait until there is room; yield the keys and exit statuses of what ended."""
        while len(self._running) >= self._size:
            yield from self._wait()

    def rest(self) -> Iterator[tuple[str, int]]:
        """Wait for all; yield their keys and exit statuses."""
        while self._running:
            yield from self._wait()

    def _wait(self) -> Iterator[tuple[str, int]]:
        last = max(deadline for _, _, deadline in self._running.values())
        ready = {
            fd for fd, _ in self._poll.poll(None if last == math.inf else max(0.0, last - time.monotonic()) * 1000)
        }
        for fd, (key, pid, deadline) in list(self._running.items()):
            if fd not in ready:
                if time.monotonic() < deadline:
                    continue
                os.kill(pid, 9)
            _, status = os.waitpid(pid, 0)
            self._poll.unregister(fd)
            os.close(fd)
            del self._running[fd]
            yield key, os.waitstatus_to_exitcode(status)


class _Progress:
    def __init__(self, total: int, say: Callable[[str], None]) -> None:
        self._total, self._say = total, say
        self._done = self._survived = 0

    def one(self, mutant: Mutant, *, survived: bool) -> None:
        self._done += 1
        self._survived += survived
        if survived:
            self._say(f"not noticed: {mutant.name} ({mutant.module}.py:{mutant.line})")
        if self._done % 100 == 0 or self._done == self._total:
            self._say(f"{self._done:>6} of {self._total}, {self._survived} not noticed")
