"""What holds for every test in the guest: it has one of its file's own, and shows the guest's journal when it fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from vm.bed.cache import LOGS, BedError
from vm.bed.guest import Guest, started
from vm.bed.machine import build_all
from vm.service import Service

_HERE = Path(__file__).parent
_SECONDS = 900
# Two workers take a group each: the doctor's tests take as long as all others.
_ALONE = "test_doctor"
_LINES = "300"


class TwoGroups(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist has no types
    """Sends the tests of a group to the same worker, one file after the other."""

    def _split_scope(self, nodeid: str) -> str:
        return _ALONE if _ALONE in nodeid else "others"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> TwoGroups:
    return TwoGroups(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.vm)
            item.add_marker(pytest.mark.timeout(_SECONDS))


@pytest.fixture(scope="module")
def guest(request: pytest.FixtureRequest) -> Iterator[Guest]:
    """A guest that has booted, with the runner's environment and nothing set up; the tests of a file share it."""
    try:
        built = build_all()
    except BedError as error:
        pytest.fail(f"The guest cannot be built. {error}", pytrace=False)
    with started(built) as made:
        yield made


@pytest.fixture(scope="module")
def service(guest: Guest) -> Service:
    """The runner's unit in the guest; each file installs it as it needs it."""
    return Service(guest)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report: pytest.TestReport = yield  # type: ignore[assignment]  # what the wrapped hook returns
    guest = getattr(item, "funcargs", {}).get("guest")
    if report.when == "call" and report.failed and guest is not None:
        LOGS.mkdir(parents=True, exist_ok=True)
        path = LOGS / f"{item.path.stem}-{item.name}.journal"
        # It is there at once, and the summary only when all tests have run.
        path.write_text(f"{report.longreprtext}\n\n{guest.journal('-o', 'short-monotonic')}", encoding="utf-8")
        report.sections.append(("the guest's journal", f"whole in {path}\n{guest.journal('-n', _LINES)}"))
    return report  # type: ignore[return-value]  # a wrapper's result replaces the hook's
