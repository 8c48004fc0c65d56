"""Which wrappers are found, what is said of the others, and that nobody runs without what was wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from utter_protocol.manifest import PERMISSIONS
from utter_runner.config import Config, SecurityConfig
from utter_runner.supervision.sandbox import landlock, wrappers
from utter_runner.supervision.sandbox.confine import confine, hidden_files
from utter_runner.supervision.sandbox.wrappers import NoSandboxError, Sandbox, find_sandbox
from utter_runner.supervision.spec import PluginSpec


def program(directory: Path, name: str, script: str) -> None:
    directory.mkdir(exist_ok=True)
    (directory / name).write_text(f"#!/bin/sh\n{script}\n")
    (directory / name).chmod(0o755)


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine without any of the programs."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "run" / "systemd").mkdir(parents=True)
    (tmp_path / "run" / "systemd" / "private").touch()
    return {"PATH": f"{tmp_path}/bin", "HOME": str(tmp_path), "XDG_RUNTIME_DIR": f"{tmp_path}/run"}


GOOD = 'if [ "$1" = --version ]; then echo "thing 1.2.3"; exit; fi\nexit 0'
BAD = (
    'if [ "$1" = --version ]; then echo "thing 1.2.3"; exit; fi\necho "No permissions to create namespace" >&2; exit 1'
)


def test_what_works_is_used_and_what_does_not_is_explained(bare: dict[str, str], tmp_path: Path) -> None:
    program(tmp_path / "bin", "bwrap", GOOD)
    program(tmp_path / "bin", "systemd-run", BAD)
    found = find_sandbox(None, bare, ("/secret",))
    assert "bubblewrap" in found.wrappers
    assert (found.bwrap, found.bwrap_version, found.hidden) == (f"{tmp_path}/bin/bwrap", (1, 2, 3), ("/secret",))
    assert found.without["systemd-run"] == "it was tried and failed: No permissions to create namespace"


def test_a_scope_is_the_outermost_where_there_is_a_user_manager(bare: dict[str, str], tmp_path: Path) -> None:
    program(tmp_path / "bin", "bwrap", GOOD)
    program(tmp_path / "bin", "systemd-run", GOOD)
    assert find_sandbox(["bubblewrap", "systemd-run"], bare).wrappers == ("systemd-run", "bubblewrap")
    (tmp_path / "run" / "systemd" / "private").unlink()
    assert "no systemd user manager" in find_sandbox(None, bare).without["systemd-run"]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (None, "there is no program bwrap in PATH"),
        (BAD, "No permissions to create namespace"),
        ("echo nonsense", "does not say its version"),
        ("exec sleep 60", "did not answer within 0.2 s"),
    ],
)
def test_what_is_named_must_work(
    bare: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, words: str
) -> None:
    if script is not None:
        program(tmp_path / "bin", "bwrap", script)
    if "sleep" in (script or ""):
        monkeypatch.setattr(wrappers, "_TRIAL_SECONDS", 0.2)
        (tmp_path / "bin" / "sleep").symlink_to("/bin/sleep")
    with pytest.raises(NoSandboxError, match=r"\[security\] sandbox names what cannot be used here") as error:
        find_sandbox(["bubblewrap"], bare)
    assert words in str(error.value)


def test_a_filter_of_calls_alone_is_no_sandbox(bare: dict[str, str]) -> None:
    with pytest.raises(NoSandboxError, match="bubblewrap or landlock is needed"):
        find_sandbox(["seccomp"], bare)


# ---- who is confined


def spec(name: str = "timer", **fields: Any) -> PluginSpec:
    return PluginSpec(id=name, argv=("true",), **fields)


def security(**fields: Any) -> Config:
    return Config(security=SecurityConfig(**fields))


def test_nobody_is_confined_where_nobody_asked_for_it(bare: dict[str, str]) -> None:
    assert confine([spec()], security(), bare) == ([spec()], [])


def test_where_nothing_can_confine_nobody_is_run(bare: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "abi", lambda: 0)
    others = [spec("mine", confine=False), spec("theirs", spawn=False, transport="connect")]
    left, problems = confine([spec(), *others], security(enforce=True), bare)
    assert [one.id for one in left] == ["mine", "theirs"]
    assert all("No sandbox holds it" in one.warnings[-1] for one in left)
    assert len(problems) == 1
    assert problems[0].startswith("Plugin timer is not run: [security] enforce = true, and there is nothing here")
    assert 'Install the package "bubblewrap"' in problems[0]


def test_everybody_else_gets_the_sandbox_and_what_reaches_out_of_it_is_said(
    bare: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Sandbox(wrappers=("landlock",), landlock_abi=6)
    monkeypatch.setattr("utter_runner.supervision.sandbox.confine.find_sandbox", lambda *_: made)
    given = [spec("a"), spec("b", permissions=tuple(PERMISSIONS)), spec("c", confine=False)]
    left, problems = confine(given, security(enforce=True), bare)
    assert problems == []
    assert [one.sandbox for one in left] == [made, made, None]
    assert [len(one.warnings) for one in left] == [0, 4, 1]
    assert "Landlock alone keeps nothing back" in left[1].warnings[-1]


def test_one_that_listens_has_a_directory_of_its_own(bare: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    made = Sandbox(wrappers=("landlock",), landlock_abi=6)
    monkeypatch.setattr("utter_runner.supervision.sandbox.confine.find_sandbox", lambda *_: made)
    for transport, path in (("listen", "/r/plugins/timer/timer.sock"), ("connect", "/r/plugins/timer.sock")):
        one = spec(transport=transport, socket_path="/r/plugins/timer.sock")
        assert confine([one], security(enforce=True), bare)[0][0].socket_path == path
    long = spec("x" * 60, transport="listen", socket_path=f"/r/plugins/{'x' * 60}.sock")
    left, problems = confine([long], security(enforce=True), bare)
    assert (left, "at most 107" in problems[0]) == ([], True)


def test_the_runner_keeps_its_configuration_and_its_state() -> None:
    config = Config(path="/home/me/.config/utter/runner.toml")
    assert hidden_files(config, {"HOME": "/home/me"}) == (config.path, "/home/me/.local/state/utter")
    assert hidden_files(Config(), {"XDG_STATE_HOME": "/s"}) == ("/s/utter",)
    # Where there is no home, the runner's state would lie there, too.
    assert hidden_files(Config(), {}) == ("/.local/state/utter",)
    assert Path(hidden_files(Config(path="x.toml"), {})[0]).is_absolute()
    secrets = hidden_files(Config(secret_files=("/home/me/token",)), {"XDG_STATE_HOME": "/s"}, ["/home/me/key"])
    assert secrets == ("/home/me/token", "/home/me/key", "/s/utter")


def test_where_a_link_leads_is_kept_too(tmp_path: Path) -> None:
    """Configurations often are links into a directory of their own."""
    (tmp_path / "dotfiles").mkdir()
    (tmp_path / "dotfiles" / "runner.toml").touch()
    (tmp_path / "config").symlink_to("dotfiles")
    path = f"{tmp_path}/config/runner.toml"
    assert hidden_files(Config(path=path), {"XDG_STATE_HOME": "/s"}) == (
        path,
        f"{tmp_path}/dotfiles/runner.toml",
        "/s/utter",
    )
