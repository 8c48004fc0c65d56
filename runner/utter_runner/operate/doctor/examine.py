"""All checks together, and the report that is made of their findings.

Rules here: importing a module registers its checks; `FAMILIES` says in which order people read of them, problems
first.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from utter_runner import __version__
from utter_runner.operate.doctor import configuration as _configuration  # noqa: F401 - registers its checks
from utter_runner.operate.doctor import keys as _keys  # noqa: F401 - registers its checks
from utter_runner.operate.doctor import limits as _limits  # noqa: F401 - registers its checks
from utter_runner.operate.doctor import models as _models  # noqa: F401 - registers its checks
from utter_runner.operate.doctor import plugins as _plugins
from utter_runner.operate.doctor import records as _records
from utter_runner.operate.doctor import runner as _runner  # noqa: F401 - registers its checks
from utter_runner.operate.doctor import service as _service  # noqa: F401 - registers its checks
from utter_runner.operate.doctor import sockets as _sockets  # noqa: F401 - registers its checks
from utter_runner.operate.doctor import software as _software  # noqa: F401 - registers its checks
from utter_runner.operate.doctor import sound as _sound  # noqa: F401 - registers its checks
from utter_runner.operate.doctor.contact import Contact
from utter_runner.operate.doctor.look import Look, Options
from utter_runner.operate.doctor.model import Health, Identity, Report
from utter_runner.operate.doctor.registry import CHECKS, DEADLINE_S, THREADS, run_all, still_looking

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from utter_runner.operate.doctor.outside import Outside
    from utter_runner.operate.doctor.registry import Check

FAMILIES: Final = (
    "config", "runner", "keys", "sound", "plugins", "models", "records", "service", "sockets", "software", "limits"
)  # fmt: skip
"""The first parts of the checks' ids, in the order of a report."""
_GRAVITY: Final = {"broken": 0, "warning": 1, "ok": 2}
# What the checks have found out is there at once; what they had no need to look at is looked at now.
_REPORT_S: Final = 3.0
_EXITS: Final = {"broken": Health.BROKEN, "warning": Health.WARNINGS, "ok": Health.FINE}


def examine(
    outside: Outside, options: Options, checks: Mapping[str, Check] = CHECKS, *, seconds: float = DEADLINE_S
) -> Report:
    """Look at everything. Returns within `seconds` and a little, whatever hangs; raises nothing.

    Args:
        outside: what is looked at.
        options: what the user said.
        checks: by id.
        seconds: what the checks have together.
    """
    look = Look(outside, options)
    findings = run_all(look, checks, seconds)
    findings.sort(key=lambda finding: (_GRAVITY[finding.status], _family(finding.check)))
    # What is still held up is not waited for again.
    patience = _REPORT_S if still_looking() else _REPORT_S * outside.pace
    contact = _in_time(look.contact, Contact(state="wedged"), patience)
    status = contact.status
    health = max((_EXITS[finding.status] for finding in findings), default=Health.FINE)
    return Report(
        ok=health is Health.FINE,
        exit=health,
        utter=__version__,
        state=contact.state,
        socket=look.socket,
        runner=Identity(protocol=status.get("protocol"), abi=status.get("abi"), version=status.get("version")),
        plugins=_in_time(lambda: _plugins.reports(look), [], patience),
        drift=_in_time(lambda: _records.drift_of(look), [], patience),
        findings=findings,
    )


def _family(check: str) -> int:
    name = check.partition(".")[0]
    return FAMILIES.index(name) if name in FAMILIES else len(FAMILIES)


def _in_time(find: Callable[[], Any], otherwise: Any, seconds: float) -> Any:
    found: list[Any] = []

    def put() -> None:
        try:
            found.append(find())
        except Exception:  # noqa: BLE001 - the check of the same thing tells of it
            found.append(otherwise)

    thread = threading.Thread(target=put, name=f"{THREADS}report", daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else otherwise
