"""Each thing that can be wrong, provoked on a machine that is otherwise healthy, and what the doctor says of it."""

from __future__ import annotations

import ast
import errno
import os
import re
import stat
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.doctor import CONFIG, Bed, Spoil, model
from support.doctor_cases import CASES, FINE
from utter_protocol.capabilities import Deprecation, Entry, Registry
from utter_runner.cli.tree import command_tree
from utter_runner.operate.doctor import examine as examination
from utter_runner.operate.doctor import keys, plugins
from utter_runner.operate.doctor.contact import Heard
from utter_runner.operate.doctor.fake import (
    INPUT,
    RUNNER_PID,
    keyboard,
    plugin,
    up,
)
from utter_runner.operate.doctor.model import Finding, Report
from utter_runner.operate.doctor.outside import Ran, Seen
from utter_runner.operate.doctor.registry import CHECKS
from utter_runner.operate.models.store import Store

PACKAGE = Path(examination.__file__).parent

provoked: set[tuple[str, int]] = set()
"""The calls that made a finding, by module and line; what all tests of this module have provoked."""


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bed:
    for name, module in list(sys.modules.items()):
        if name.startswith("utter_runner.operate.doctor."):
            for maker in ("ok", "warning", "broken"):
                if name != "utter_runner.operate.doctor.model" and hasattr(module, maker):
                    monkeypatch.setattr(module, maker, partial(_noted, getattr(module, maker)))
    return Bed(tmp_path)


def _noted(make: Callable[..., Finding], *args: Any) -> Finding:
    frame = sys._getframe(1)
    provoked.add((Path(frame.f_code.co_filename).name, frame.f_lineno))
    return make(*args)


def found(report: Report, check: str) -> list[Finding]:
    return [finding for finding in report.findings if finding.check == check]


def test_a_healthy_machine_is_fine(bed: Bed) -> None:
    report = bed.examine()
    assert [finding for finding in report.findings if finding.status != "ok"] == []
    assert (report.ok, report.exit, report.state) == (True, 0, "up")
    # Each check has something to say of it.
    assert {finding.check for finding in report.findings} == set(CHECKS)


@pytest.mark.parametrize(("what", "spoil", "check", "status", "mend"), CASES, ids=[case[0] for case in CASES])
def test_what_is_wrong_is_found_with_what_mends_it(
    bed: Bed, *, what: str, spoil: Spoil, check: str, status: str, mend: str
) -> None:
    spoil(bed)
    report = bed.examine()
    matching = [
        finding for finding in found(report, check) if finding.status == status and re.search(mend, finding.mend)
    ]
    assert matching, f"{what}: {found(report, check)}"
    assert all(finding.what and finding.why for finding in matching)
    assert "\n" not in matching[0].mend
    assert (report.ok, report.exit >= (2 if status == "broken" else 1)) == (False, True)
    # Whatever is wrong, no check fails itself.
    assert not [
        finding
        for finding in report.findings
        if "itself has failed" in finding.what and finding.check != "config.start"
    ]


@pytest.mark.parametrize(("what", "make", "check", "said"), FINE, ids=[case[0] for case in FINE])
def test_what_is_in_order_is_said_so(bed: Bed, what: str, make: Spoil, check: str, said: str) -> None:
    make(bed)
    (finding,) = found(bed.examine(), check)
    assert (finding.status, finding.why, finding.mend) == ("ok", "", ""), what
    assert re.search(said, finding.what)


def test_every_finding_of_every_check_has_been_provoked(bed: Bed, tmp_path: Path) -> None:
    """In place of a promise: each call that makes a finding is made by a case above, and each check in both states."""
    provoked.clear()
    states: dict[str, set[bool]] = {name: set() for name in CHECKS}
    for number, spoil in enumerate([lambda _bed: None, *(case[1] for case in [*CASES, *FINE])]):
        root = tmp_path / str(number)
        root.mkdir()
        one = Bed(root)
        spoil(one)
        for finding in one.examine().findings:
            states[finding.check].add(finding.status == "ok")
    missed = []
    for path in sorted(PACKAGE.glob("*.py")):
        if path.name in ("model.py", "registry.py"):
            continue
        for call in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Name)
                and call.func.id in ("ok", "warning", "broken")
            ):
                lines = range(call.lineno, (call.end_lineno or 0) + 1)
                if not any((path.name, line) in provoked for line in lines):
                    missed.append(f"{path.name}:{call.lineno}")
    assert missed == []
    # The portal is one way of several, and its absence is nothing to mend.
    assert {name for name, both_states in states.items() if len(both_states) < 2} <= {"keys.portal"}


def test_deprecations_and_unknown_names_are_told_without_the_runner(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = Deprecation(since="1.0", replacement="new.thing@1")
    entries = [
        Entry(name="old.thing", version=1, summary="", deprecated=ends),
        Entry(name="new.thing", version=1, summary=""),
    ]
    monkeypatch.setattr(plugins, "load_registry", lambda: Registry(entries))
    bed.down()
    bed.config = (
        CONFIG + 'provides = ["old.thing@1", "odd.thing@1"]\nrequires = ["new.thing@1"]\npermissions = ["network"]\n'
    )
    report = bed.examine()
    (told,) = report.plugins
    assert (told.id, told.epoch, told.status, told.negotiated) == ("hello", None, None, None)
    assert told.unknown_capabilities == ["odd.thing@1"]
    assert told.missing_requires == ["new.thing@1"]
    assert [(one.capability, one.replacement) for one in told.deprecations] == [("old.thing@1", "new.thing@1")]
    assert [(one.name, one.enforced, one.advisory) for one in told.permissions] == [("network", None, None)]
    assert {one.status for one in found(report, "plugins.capabilities")} == {"warning"}
    assert {one.status for one in found(report, "plugins.requires")} == {"broken"}


def test_the_configuration_that_the_runner_reads_is_looked_at(bed: Bed) -> None:
    elsewhere = bed.root / "other.toml"
    elsewhere.write_text("[audio]\nsauce = 1\n")
    for words in (("--config", str(elsewhere)), (f"--config={elsewhere}",)):
        bed.outside.running = [
            one._replace(argv=("/usr/bin/python3", "utter-runner", *words)) if one.pid == RUNNER_PID else one
            for one in bed.outside.running
        ]
        assert str(elsewhere) in found(bed.examine(), "config.file")[0].what


def test_a_keyboard_that_lacks_the_key_is_not_taken_for_one_that_has_it(bed: Bed) -> None:
    bed.down()
    path = keyboard(bed.outside, "event7", "Numbers", 1 << 79)
    bed.outside.nodes[path] = Seen(stat.S_IFCHR | 0o660, 0, INPUT)
    bed.outside.unreadable.add("/dev/input/event3")
    (finding,) = found(bed.examine(), "keys.path")
    assert "/dev/input/event3" in finding.what


def test_the_version_of_the_portal_is_read(bed: Bed) -> None:
    bed.outside.programs["dbus-send"] = Ran(0, "method return time=1\n   variant       uint32 2\n")
    assert "version 2" in found(bed.examine(), "keys.portal")[0].what
    bed.outside.programs["dbus-send"] = Ran(1, "", "Error org.freedesktop.DBus.Error.ServiceUnknown")
    assert "no portal" in found(bed.examine(), "keys.portal")[0].what
    assert keys.DIRECTORY == "/dev/input"


def test_the_report_has_the_fields_that_programs_rely_on(bed: Bed) -> None:
    bed.outside.contact = up(plugin("hello"), drift=[{"plugin": "hello", "field": "digest"}])
    shown: dict[str, Any] = msgspec.to_builtins(bed.examine())
    assert set(shown) == {"ok", "exit", "utter", "state", "socket", "runner", "plugins", "drift", "findings"}
    assert set(shown["runner"]) == {"protocol", "abi", "version"}
    assert set(shown["plugins"][0]) == {
        *("id", "kind", "epoch", "status", "negotiated", "permissions", "deprecations"),
        *("unknown_capabilities", "missing_requires"),
    }
    assert shown["plugins"][0]["negotiated"] == {"protocol": "1.0", "abi": 1}
    assert shown["drift"] == [{"plugin": "hello", "field": "digest"}]
    assert set(shown["findings"][0]) == {"check", "status", "what", "why", "mend"}
    bed.down()
    assert msgspec.to_builtins(bed.examine())["runner"] == {"protocol": None, "abi": None, "version": None}


def test_problems_come_first_and_decide(bed: Bed) -> None:
    bed.outside.priority = 0
    report = bed.examine()
    assert (report.exit, report.findings[0].status) == (1, "warning")
    bed.outside.contact = up(plugin("hello", status="failed"))
    report = bed.examine()
    assert (report.exit, report.findings[0].status, report.findings[1].status) == (2, "broken", "warning")


def test_the_output_of_plugins_and_secrets_stay_out(bed: Bed) -> None:
    bed.outside.contact = up(plugin("hello", status="failed", stderr_tail="heard: my secret words", detail="It ended."))
    bed.outside.environ = {**bed.outside.environ, "KEY_OF_MINE": "sesame\x1b[31m"}
    bed.config = CONFIG + '[plugin.secret_env]\nKEY = "env:KEY_OF_MINE"\n'
    report = bed.examine()
    assert found(report, "config.secrets")[0].status == "broken"
    shown = msgspec.json.encode(report)
    assert b"secret words" not in shown
    assert b"sesame" not in shown


def test_two_errors_in_a_configuration_are_both_told(bed: Bed) -> None:
    bed.config = "[audio]\nsauce = 1\n[voice]\nlanguage = 3\n"
    assert len(found(bed.examine(), "config.file")) == 2


def test_the_trial_is_by_this_python(bed: Bed) -> None:
    bed.down()
    bed.examine()
    ran = [argv for argv in bed.outside.ran if "utter_runner" in argv]
    assert ran == [[bed.outside.interpreter, "-m", "utter_runner", "--config", os.fspath(bed.path), "--check"]]


def test_a_model_that_cannot_be_read_is_told_of(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(_store: Store, _sha256: str) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", "/the/file")

    monkeypatch.setattr(Store, "is_whole", closed)
    model(place="sha256", thorough=True)(bed)
    (finding,) = found(bed.examine(), "models.files")
    assert (finding.status, finding.what) == ("broken", "/the/file cannot be read: Permission denied.")


def test_every_command_that_is_named_is_one() -> None:
    """Whatever a check may say, `utter` has the commands that it names."""
    named: set[tuple[str, ...]] = set()
    for source in PACKAGE.glob("*.py"):
        tree = ast.parse(source.read_text())
        prose = {
            id(one.body[0].value)
            for one in ast.walk(tree)
            if isinstance(one, ast.Module | ast.ClassDef | ast.FunctionDef) and isinstance(one.body[0], ast.Expr)
        }
        for one in ast.walk(tree):
            if isinstance(one, ast.Constant) and isinstance(one.value, str) and id(one) not in prose:
                named |= {tuple(words.split()) for words in re.findall(r"(?:^|[ `(])utter ([a-z][a-z ]*)", one.value)}
    assert {("config", "init"), ("service", "install"), ("models", "pull"), ("reload",)} <= named
    for words in named:
        command = command_tree()
        for word in words:
            if command.commands:
                assert word in command.commands, f"there is no command utter {' '.join(words)}"
                command = command.commands[word]
        assert not command.commands or words[-1] == "plugins", f"utter {' '.join(words)} does nothing by itself"


@pytest.mark.parametrize("told", ["Volume: 0.40\n", "", None])
def test_a_silent_microphone_is_said_not_to_be_muted_only_if_that_is_known(bed: Bed, told: str | None) -> None:
    bed.outside.heard = Heard(peak_db=-120.0, device="mic")
    bed.outside.programs["wpctl get-volume"] = Ran(None) if told is None else Ran(0, told)
    (finding,) = found(bed.examine(), "sound.microphone")
    assert ("It is not muted" in finding.why) is bool(told)


def test_the_volume_is_asked_for_once(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    bed.outside.heard = Heard(peak_db=-120.0, device="mic")
    asked: list[str] = []
    run = bed.outside.run

    def noted(argv: Sequence[str], **more: Any) -> Ran:
        asked.append(argv[0])
        return run(argv, **more)

    monkeypatch.setattr(bed.outside, "run", noted)
    assert found(bed.examine(), "sound.microphone")[0].status == "broken"
    assert asked.count("wpctl") == 1
