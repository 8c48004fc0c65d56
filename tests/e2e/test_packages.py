"""Packages as the daemon finds them, runs them, and leaves them alone."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from support.daemon import Daemon, environment
from utter_runner.cli.new import create

if TYPE_CHECKING:
    from pathlib import Path


class Home:
    """A user with a data directory, in which there are three packages."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "run").mkdir(mode=0o700)
        self.packages = directory / "data" / "utter" / "plugins"
        self.packages.mkdir(parents=True)
        self.env = environment(directory / "run", XDG_DATA_HOME=str(directory / "data"))
        for name in ("greeter", "idle", "unguarded"):
            create(name, "python", "action", str(self.packages))
        (self.packages / "unguarded" / "plugin.py").unlink()
        (self.packages / "unguarded").chmod(0o777)

    def daemon(self, config: str) -> Daemon:
        """A daemon of this user."""
        return Daemon(self.directory, config, env=self.env)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_a_package_is_run_by_its_id_and_no_other_one_is(home: Home) -> None:
    config = '[[plugin]]\nid = "greeter"\n[plugin.settings]\ngreeting = "Ahoy"\n'
    with home.daemon(config) as daemon, daemon.client() as client:
        (shown,) = client.call("runner.plugins", {}, 10)["plugins"]
        assert (shown["id"], shown["status"]) == ("greeter", "ready")
        params = {"op": "hello", "args": {"name": "Ada"}, "provenance": "user"}
        call = {"plugin": "greeter", "method": "action.invoke", "params": params}
        assert client.call("runner.invoke", call, 10)["detail"] == "Ahoy, Ada!"
    assert not any("idle" in line or "unguarded" in line for line in daemon.log)


def test_what_is_wrong_with_one_does_not_keep_the_others(home: Home) -> None:
    wrong = '[[plugin]]\nid = "idle"\n[plugin.settings]\ngreting = "Ahoy"\n'
    config = f'{wrong}[[plugin]]\nid = "greeter"\n[[plugin]]\nid = "unguarded"\n'
    with home.daemon(config) as daemon, daemon.client() as client:
        (shown,) = client.call("runner.plugins", {}, 10)["plugins"]
        assert (shown["id"], shown["status"]) == ("greeter", "ready")
        warnings = client.call("runner.status", {}, 10)["warnings"]
    settings = f"Plugin idle: {daemon.config}:4: There is no setting greting. Did you mean greeting?"
    assert settings in warnings
    place = home.packages / "unguarded"
    trust = f"Plugin unguarded: {place} can be changed by every user, who could put other code there: "
    assert any(warning.startswith(trust) for warning in warnings)
    # And the same before anything is started.
    argv = [sys.executable, "-m", "utter_runner", "--check", "--config", str(daemon.config)]
    done = subprocess.run(argv, env=home.env, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert settings in done.stderr.splitlines()
    assert trust in done.stderr
    assert "plugins that can be run: 1; problems: " in done.stdout
