"""The life of a plugin that somebody signed: installed, run by the real daemon, updated, run again, removed."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from typing import TYPE_CHECKING, Any

import pytest

from support.daemon import Daemon, environment
from support.docs import ROOT
from support.terminal import UTTER

if TYPE_CHECKING:
    from pathlib import Path

EXAMPLE = ROOT / "plugins" / "examples" / "python-hello"
CONFIG = '[[plugin]]\nid = "python-hello"\n'

pytestmark = pytest.mark.skipif(shutil.which("minisign") is None, reason="minisign is not installed")


class Author:
    """Somebody with minisign and a directory to work in."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()
        self._minisign("-G", "-W", "-p", "author.pub", "-s", "author.key")
        shutil.copytree(EXAMPLE, directory / "python-hello", ignore=shutil.ignore_patterns("__pycache__"))

    def _minisign(self, *arguments: str) -> None:
        subprocess.run(["minisign", *arguments], cwd=self.directory, check=True, timeout=60, capture_output=True)

    def release(self, version: str, greeting: str) -> Path:
        """A signed archive of a version that greets like this."""
        for path in (self.directory / "python-hello").iterdir():
            text = path.read_text()
            path.write_text(
                text.replace('version = "0.1.0"', f'version = "{version}"').replace('"Hello"', f'"{greeting}"')
            )
        archive = self.directory / f"python-hello-{version}.tar.gz"
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(self.directory / "python-hello", "python-hello")
        self._minisign("-S", "-s", "author.key", "-t", f"python-hello {version}", "-m", archive.name)
        return archive


def greeting(daemon: Daemon) -> tuple[str, str]:
    """What the plugin is, and what it says."""
    with daemon.client() as client:
        (shown,) = client.call("runner.plugins", {}, 30)["plugins"]
        params = {"op": "hello", "args": {"name": "Ada"}, "provenance": "user"}
        call = {"plugin": "python-hello", "method": "action.invoke", "params": params}
        return shown["version"], client.call("runner.invoke", call, 30)["detail"]


def test_the_life_of_a_signed_plugin(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    env = environment(tmp_path / "run")
    author = Author(tmp_path / "author")

    def utter(*arguments: str | Path, code: int = 0) -> dict[str, Any]:
        argv = [*UTTER, "plugins", *map(str, arguments), "--json"]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == code, done.stderr
        return dict(json.loads(done.stdout))

    first = author.release("0.1.0", "Hello")
    key = author.directory / "author.pub"
    installed = utter("install", first, "--key", key, "--yes")
    assert installed["signed_by"] == key.read_text().splitlines()[1]
    with Daemon(tmp_path, CONFIG, env=env) as daemon:
        assert greeting(daemon) == ("0.1.0", "Hello, Ada!")
        # It is replaced while it runs, and what runs goes on.
        second = author.release("0.2.0", "Ahoy")
        assert utter("update", second, "--key", key, "--yes")["was"] == "0.1.0"
        assert greeting(daemon) == ("0.1.0", "Hello, Ada!")
    with Daemon(tmp_path, CONFIG, env=env) as daemon:
        assert greeting(daemon)[1] == "Ahoy, Ada!"
    # One that is not what was signed is not taken, and changes nothing.
    with second.open("ab") as file:
        file.write(b"\0")
    assert utter("update", second, "--key", key, "--yes", code=3)["error"]["kind"] == "untrusted"
    assert utter("remove", "python-hello", "--yes")["plugin"] == "python-hello"
    with Daemon(tmp_path, CONFIG, env=env) as daemon, daemon.client() as client:
        assert client.call("runner.plugins", {}, 30)["plugins"] == []
