"""`utter plugins`: what runs, what lies on disk, whether it is in order, and a new one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from support.conformance import check_shipped
from support.daemon import Daemon
from support.docs import ROOT
from support.fake_runner import FakeRunner
from utter_protocol.errors import RpcError
from utter_protocol.packages import MANIFEST_NAME
from utter_protocol.settings import check_manifest
from utter_runner.cli import main
from utter_runner.cli.new import TEMPLATES, choices
from utter_runner.config import parse_config

MANIFEST = """\
name = "timer"
version = "1.2.0"
kind = "action"
protocol = "1.0"
abi = 1
runtime = "subprocess"
transport = "stdio"
entrypoint = ["timer"]
"""


def package(directory: Path, text: str = MANIFEST) -> Path:
    directory.mkdir(parents=True)
    (directory / MANIFEST_NAME).write_text(text)
    return directory / MANIFEST_NAME


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without packages and configuration."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_DIRS", str(tmp_path / "system"))
    return tmp_path


# ---- what runs


def test_the_list_is_there_with_and_without_its_name(runner: FakeRunner, capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for arguments in (["plugins"], ["plugins", "list"], ["plugins", "--json"], ["plugins", "list", "--json"]):
        assert main(arguments) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    assert "whisper: It ended 5 times" in shown[0]
    assert shown[2] == shown[3]
    assert json.loads(shown[2]) == runner.answers["runner.plugins"]


def test_options_stand_behind_the_command(runner: FakeRunner, capsys: pytest.CaptureFixture[str]) -> None:
    # One that would be overheard is refused, and the variable is not.
    assert main(["plugins", "--json", "list"]) == 2
    assert "Options stand behind the command: utter plugins list" in capsys.readouterr().err
    assert runner.calls == []


VALIDATION: dict[str, Any] = {
    "ok": False,
    "negotiated": {"protocol": "1.0", "abi": 1},
    "status": "failed",
    "detail": "it is \x1b[1mmissing",
    "error": {"code": -32005, "message": "timer requires tts.speak@1"},
    "unknown_capabilities": ["tea.brew@1"],
    "missing_requires": ["tts.speak@1"],
    "deprecations": [
        {"capability": "router.plan@1", "since": "1.4", "replacement": "router.plan@2", "removed": "2.0"},
        {"capability": "old@1", "since": "1.3", "replacement": "", "removed": ""},
    ],
    "warnings": ["Careful."],
    "permissions": [
        {"name": "network", "enforced": False, "advisory": True},
        {"name": "gpu", "enforced": True, "advisory": False},
    ],
}


def test_validate(runner: FakeRunner, capsys: pytest.CaptureFixture[str]) -> None:
    runner.answers["runner.validate_plugin"] = VALIDATION
    assert main(["plugins", "validate", "timer"]) == 4
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "timer       not in order",
        r"Status      failed: it is \x1b[1mmissing",
        "Refused     timer requires tts.speak@1 (-32005)",
        "Speaks      protocol 1.0, abi 1",
        "Missing     tts.speak@1: nobody provides it",
        "Unknown     tea.brew@1",
        "Deprecated  router.plan@1 since 1.4: use router.plan@2; removed in 2.0",
        "Deprecated  old@1 since 1.3",
        "Warning     Careful.",
        "Permission  network: advisory",
        "Permission  gpu: enforced",
    ]
    assert runner.calls == [("runner.validate_plugin", {"plugin": "timer"})]
    assert main(["plugins", "validate", "timer", "--json"]) == 4
    assert json.loads(capsys.readouterr().out) == VALIDATION


def state(name: str, *, enforced: bool) -> dict[str, Any]:
    return {"name": name, "enforced": enforced, "advisory": not enforced}


SANDBOX: dict[str, Any] = {
    "wrappers": ["bubblewrap", "seccomp"],
    "permissions": [state("network", enforced=True), state("gpu", enforced=False)],
    "besides": [state("other processes", enforced=True)],
    "reasons": {"network": "it was tried", "gpu": "there is \x1b[1mnone", "other processes": "it was tried"},
}


def test_validate_says_what_the_sandbox_was_seen_to_hold(
    runner: FakeRunner, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = {**VALIDATION, "ok": True, "permissions": SANDBOX["permissions"], "sandbox": SANDBOX}
    runner.answers["runner.validate_plugin"] = answer
    assert main(["plugins", "validate", "timer"]) == 0
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()][-4:] == [
        "Sandbox     bubblewrap, seccomp",
        "Permission  network: enforced (it was tried)",
        r"Permission  gpu: advisory (there is \x1b[1mnone)",
        "Kept off    other processes: enforced (it was tried)",
    ]


def test_the_list_says_what_the_sandbox_holds_where_there_is_one(
    runner: FakeRunner, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = {"wrappers": [], "permissions": [state("network", enforced=False)], "besides": [], "reasons": {}}
    timer, other, third = ({"id": name, "status": "ready"} for name in ("timer", "other", "third"))
    runner.answers["runner.status"] = {"plugins": [timer | {"sandbox": nothing}]}
    assert main(["plugins"]) == 0
    assert "sandbox" not in capsys.readouterr().out
    inside = {**SANDBOX, "permissions": []}
    all_of_them = [timer | {"sandbox": SANDBOX}, other | {"sandbox": nothing}, third | {"sandbox": inside}]
    runner.answers["runner.status"] = {"plugins": all_of_them}
    assert main(["plugins"]) == 0
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "timer in the sandbox: network enforced, gpu advisory",
        "other without a sandbox: network advisory",
        "third in the sandbox: no permissions",
    ]


def test_the_list_says_what_has_drifted(runner: FakeRunner, capsys: pytest.CaptureFixture[str]) -> None:
    def one(plugin: str, field: str, detail: str) -> dict[str, str]:
        return {"plugin": plugin, "field": field, "recorded": "", "found": "", "detail": detail}

    runner.answers["runner.status"] = {
        "plugins": [{"id": "timer", "status": "ready"}],
        "drift": [
            one("timer", "digest", "What timer is made of\x1b[31m has changed."),
            one("other", "unrecorded", "other is configured and not recorded."),
            one("", "lockfile", "install.lock:3: The record cannot be used."),
        ],
    }
    assert main(["plugins"]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "timer has drifted: What timer is made of\\x1b[31m has changed.",
        "install.lock:3: The record cannot be used.",
    ]


def test_validate_one_that_is_in_order(runner: FakeRunner, capsys: pytest.CaptureFixture[str]) -> None:
    runner.answers["runner.validate_plugin"] = {
        "ok": True,
        "status": "ready",
        "negotiated": {"protocol": "1.0", "abi": 1},
    }
    assert main(["plugins", "validate", "timer"]) == 0
    assert capsys.readouterr().out.split() == [
        "timer",
        "in",
        "order",
        "Status",
        "ready",
        "Speaks",
        "protocol",
        "1.0,",
        "abi",
        "1",
    ]
    runner.answers["runner.validate_plugin"] = RpcError(-32005, "there is no plugin 'timer'")
    assert main(["plugins", "validate", "timer"]) == 4
    assert capsys.readouterr().err == "utter: there is no plugin 'timer'\n"


# ---- what lies on disk


def found(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, Any]]:
    assert main(["plugins", "available", "--json", *arguments]) == 0
    packages = json.loads(capsys.readouterr().out)["packages"]
    assert [one["id"] for one in packages] == sorted(one["id"] for one in packages)
    return {one["id"]: one for one in packages}


def test_packages_are_found_where_the_runner_looks(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = package(home / ".local/share/utter/plugins/timer")
    theirs = package(home / "system/utter/plugins/clock", MANIFEST.replace("timer", "clock"))
    package(home / "system/utter/plugins/timer", "not even TOML")
    (home / ".config/utter").mkdir(parents=True)
    config = home / ".config/utter/runner.toml"
    runs = '[[plugin]]\nid = "timer"\n[[plugin]]\nid = "espeak"\nenabled = false\n'
    config.write_text(f'[runner]\nplugin_dirs = ["{home}/more"]\n{runs}')
    package(home / "more/desktop", MANIFEST.replace("timer", "desktop").replace("1.2.0", "9.0.0"))
    packages = found(capsys)
    assert packages["timer"] == {
        "id": "timer",
        "version": "1.2.0",
        "kind": "action",
        "path": str(mine),
        "bundled": False,
        "configured": True,
        "problems": [],
    }
    assert packages["clock"]["path"] == str(theirs)
    assert (packages["desktop"]["version"], packages["desktop"]["bundled"]) == ("9.0.0", False)
    assert (packages["espeak"]["bundled"], packages["espeak"]["configured"]) == (True, False)
    # Another configuration, and what is wrong with one.
    config.write_text("[runner]\nplugin_dirz = []\n")
    assert main(["plugins", "available"]) == 2
    assert f"{config}:2: [runner] has no key 'plugin_dirz'" in capsys.readouterr().err
    other = home / "other.toml"
    other.write_text("")
    assert found(capsys, "--config", str(other))["desktop"]["bundled"]
    assert main(["plugins", "available", "--config", str(home / "gone.toml")]) == 2


def test_what_cannot_be_run_says_why(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = home / ".local/share/utter/plugins"
    open_to_all = package(place / "open")
    open_to_all.chmod(0o666)
    package(place / "newer", MANIFEST.replace("timer", "newer") + 'min_runner = "99.0"\nplatforms = ["plan9"]\n')
    package(place / "other")
    wrong = package(place / "wrong", MANIFEST.replace("abi = 1", "abi = 0") + '[config_schema]\ntype = "table"\n')
    package(place / "module", MANIFEST.replace("timer", "module").replace('"subprocess"', '"wasm"'))
    monkeypatch.setattr("utter_protocol.packages.find_spec", lambda _name: None)
    packages = found(capsys)
    assert set(packages) == {"open", "newer", "other", "wrong", "module"}
    (problem,) = packages["open"]["problems"]
    assert f"{open_to_all} can be changed by every user" in problem
    assert [problem.partition(",")[0] for problem in packages["newer"]["problems"]] == [
        "The plugin runs on plan9",
        "The plugin needs utter-runner 99.0 or newer",
    ]
    assert packages["other"]["problems"] == [f"{place}/other/{MANIFEST_NAME} is of a plugin named timer."]
    assert [problem.partition(": ")[0] for problem in packages["wrong"]["problems"]] == [f"{wrong}:5", f"{wrong}:10"]
    assert "pip install utter-runner[wasm]" in packages["module"]["problems"][0]
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["plugins", "available"]) == 0
    shown = capsys.readouterr().out
    assert f"other: {place}/other/{MANIFEST_NAME} is of a plugin named timer." in shown
    assert [line.split()[:3] for line in shown.splitlines() if line.startswith(" newer ")] == [
        ["newer", "action", "1.2.0"]
    ]


# ---- a manifest


def test_check_one_that_is_in_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = package(tmp_path / "timer")
    for path in (manifest, manifest.parent):
        assert main(["plugins", "check", str(path)]) == 0
        assert capsys.readouterr().out == f"{manifest} is in order.\n"


def test_check_finds_everything_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        MANIFEST.replace('"1.0"', '"one"')
        + 'licence = "MIT"\n[settings]\nrate = 1\n[config_schema.properties.rate]\nminimum = 2\n'
    )
    manifest = package(tmp_path / "timer", text)
    assert main(["plugins", "check", str(manifest)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.removeprefix(f"{manifest}:").partition(": ")[0] for line in lines] == ["4", "9", "11"]
    assert lines[2].endswith("A default is wrong. The setting rate: the value is less than the minimum of 2.")
    assert main(["plugins", "check", str(manifest), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["ok"], said["manifest"], said["warnings"]) == (False, str(manifest), [])
    assert [(one["line"], one["field"], one["text"]) for one in said["problems"]] == [
        (4, "protocol", lines[0]),
        (9, "licence", lines[1]),
        (11, "settings.rate", lines[2]),
    ]


def test_check_warns_of_what_is_odd_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = 'provides = ["tea.brew@1"]\npermissions = ["telepathy"]\nplatforms = ["plan9"]\n'
    manifest = package(tmp_path / "timer", MANIFEST + more)
    manifest.parent.chmod(0o777)
    assert main(["plugins", "check", str(manifest)]) == 0
    *warnings, last = capsys.readouterr().out.splitlines()
    assert last == f"{manifest} is in order."
    assert all(warning.startswith(f"{manifest}: Warning: ") for warning in warnings)
    for word in ("tea.brew@1", "telepathy", "plan9", "can be changed by every user"):
        assert sum(word in warning for warning in warnings) == 1, word


def test_check_what_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (tmp_path / "gone.toml", tmp_path):
        assert main(["plugins", "check", str(path)]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"utter: There is no manifest {tmp_path / 'gone.toml'}.",
        f"utter: There is no manifest {tmp_path / MANIFEST_NAME}.",
    ]


# ---- a new one

NAME = "kitchen-timer.2"
PROGRAMS = {"python": sys.executable, "node": "node", "shell": "sh"}


def make(directory: Path, capsys: pytest.CaptureFixture[str], language: str, kind: str = "action") -> dict[str, Any]:
    assert main(["plugins", "new", NAME, "--lang", language, "--kind", kind, "--dir", str(directory), "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


def test_there_is_one_for_each_language() -> None:
    assert {language for language, kind in choices() if kind == "action"} == set(PROGRAMS)


@pytest.mark.parametrize(("language", "kind"), choices())
def test_a_new_one_works_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str], language: str, kind: str) -> None:
    if shutil.which(PROGRAMS[language]) is None:
        pytest.skip(f"{PROGRAMS[language]} is not installed")
    made = make(tmp_path, capsys, language, kind)
    directory = Path(made["directory"])
    assert made["files"] == sorted(path.name for path in directory.iterdir())
    manifest = check_manifest(directory / MANIFEST_NAME)
    assert (manifest.name, manifest.kind, manifest.version) == (NAME, kind, "0.1.0")
    # Nothing of the example's own name is left, and the README says what to do.
    source = check_manifest(TEMPLATES / f"{language}-{kind}" / MANIFEST_NAME).name
    assert not [path.name for path in directory.iterdir() if source in path.read_text() or source in path.name]
    assert made["entry"] in (directory / "README.md").read_text()
    with Daemon(tmp_path, made["entry"] + "\n") as daemon, daemon.client() as client:
        (shown,) = client.call("runner.plugins", {}, 10)["plugins"]
        assert (shown["id"], shown["status"], shown["kind"]) == (NAME, "ready", kind)
        assert client.call("runner.validate_plugin", {"plugin": NAME}, 10)["ok"]
        if kind == "action":
            params = {"op": "hello", "args": {"name": "Ada"}, "provenance": "user"}
            call = {"plugin": NAME, "method": "action.invoke", "params": params}
            assert client.call("runner.invoke", call, 10)["detail"] == "Hello, Ada!"
        elif kind == "router":
            (step,) = client.call("runner.command", {"utterance": "Open the example."}, 10)["results"]
            assert step["op"] == "open_url"
        else:
            assert "load" in client.call("context.snapshot", {"sources": ["load"]}, 10)


@pytest.mark.parametrize(("language", "kind"), choices())
def test_a_new_one_keeps_to_the_protocol(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], language: str, kind: str
) -> None:
    if shutil.which(PROGRAMS[language]) is None:
        pytest.skip(f"{PROGRAMS[language]} is not installed")
    report = check_shipped(Path(make(tmp_path, capsys, language, kind)["directory"], MANIFEST_NAME))
    assert report.ok, report.text()


@pytest.mark.parametrize("kind", [kind for language, kind in choices() if language == "python"])
def test_the_tests_of_a_new_one_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    made = make(tmp_path, capsys, "python", kind)
    assert made["tests"]
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", made["directory"]]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


def test_what_it_says_is_what_there_is_to_do(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = home / 'odd "place"'
    place.mkdir()
    monkeypatch.chdir(place)
    assert main(["plugins", "new", NAME]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"Made {place / NAME}: README.md, plugin.py, test_plugin.py, {MANIFEST_NAME}\n")
    (entry,) = (part for part in said.split("\n\n") if part.startswith("[[plugin]]"))
    (plugin,) = parse_config(entry).plugin
    assert (plugin.id, plugin.manifest) == (NAME, str(place / NAME))
    # Where the runner looks by itself, the id is enough.
    searched = home / ".local/share/utter/plugins"
    searched.mkdir(parents=True)
    assert main(["plugins", "new", NAME, "--dir", str(searched), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["entry"] == f'[[plugin]]\nid = "{NAME}"'
    assert found(capsys)[NAME]["problems"] == []


def test_nothing_is_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path, capsys, "python")
    before = {path: path.read_bytes() for path in (tmp_path / NAME).iterdir()}
    for language in ("python", "node"):
        assert main(["plugins", "new", NAME, "--lang", language, "--dir", str(tmp_path)]) == 2
        assert "exists already, and nothing is written over" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in (tmp_path / NAME).iterdir()} == before
    (tmp_path / "file").write_text("")
    assert main(["plugins", "new", "file", "--dir", str(tmp_path)]) == 2
    # An empty directory may be somebody's, too.
    (tmp_path / "empty").mkdir()
    assert main(["plugins", "new", "empty", "--dir", str(tmp_path)]) == 2


@pytest.mark.parametrize(
    "name", ["", "x", "Timer", "../timer", "a/b", ".timer", "timer\n", "-timer", "t" * 65, "tïmer"]
)
def test_a_name_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert main(["plugins", "new", "--dir", str(tmp_path), "--", name]) == 2
    assert "is not a plugin's name: 2 to 64 of the characters" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_what_there_is_nothing_to_begin_with_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "new", NAME, "--kind", "stt", "--dir", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "There is no plugin of the kind stt in python to begin with. There is: " in said
    assert all(f"--lang {language} --kind {kind}" in said for language, kind in choices())
    assert main(["plugins", "new", NAME, "--lang", "cobol", "--dir", str(tmp_path)]) == 2
    assert main(["plugins", "new", NAME, "--dir", str(tmp_path / "gone")]) == 2
    assert "cannot be made: No such file or directory." in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_open_umask_makes_no_open_package(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = os.umask(0)
    try:
        made = make(tmp_path, capsys, "python")
    finally:
        os.umask(before)
    for path in (Path(made["directory"]), *Path(made["directory"]).iterdir()):
        assert not path.stat().st_mode & 0o002


def test_a_disk_that_is_full_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("utter_runner.cli.new._sources", full)
    assert main(["plugins", "new", NAME, "--dir", str(tmp_path)]) == 2
    assert "cannot be filled: No space left on device." in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_what_people_begin_with_is_in_the_wheel(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(argv, cwd=ROOT, check=True, capture_output=True, timeout=100)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name: archive.read(name) for name in archive.namelist() if "/cli/templates/" in name}
    sources = [path for language, kind in choices() for path in (TEMPLATES / f"{language}-{kind}").iterdir()]
    files = [path for path in sources if path.is_file()]
    assert len(files) > len(choices())
    for path in files:
        assert packed[f"utter_runner/cli/templates/{path.parent.name}/{path.name}"] == path.read_bytes()
