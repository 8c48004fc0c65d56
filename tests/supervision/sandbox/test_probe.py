"""A hostile program inside the real sandbox: what it cannot do without a permission, and that it can with it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from utter_protocol.manifest import PERMISSIONS
from utter_runner.supervision.launch import SpawnError
from utter_runner.supervision.sandbox.findings import BESIDES, Finding
from utter_runner.supervision.sandbox.probe import probe
from utter_runner.supervision.sandbox.wrappers import NoSandboxError, Sandbox, find_sandbox

NOBODY = 65534
FILES = {"files.read", "files.write", "other processes"}
SOCKETS = {"session.bus", "microphone", "screen", "the runner's socket"}
EVERYTHING = FILES | SOCKETS | {"network", "process.spawn"}
# What each holds back by itself. Landlock knows no datagrams and no sockets with a path, and ends no processes.
HELD = {
    "bubblewrap": EVERYTHING,
    "landlock": FILES,
    "landlock,seccomp": FILES | {"network"},
    "bubblewrap,seccomp": EVERYTHING,
    "": EVERYTHING,
}
# Those that this machine may have nothing to try on.
DEVICES = {"gpu", "input.inject"}


def made_of(names: str) -> Sandbox:
    wanted: Any = names.split(",") if names else None
    try:
        found = find_sandbox(wanted, os.environ)
    except NoSandboxError as error:
        pytest.skip(str(error))
    if not names and "bubblewrap" not in found.wrappers:
        pytest.skip(f"bubblewrap: {found.without['bubblewrap']}")
    return found


@contextmanager
def session(root: Path) -> Iterator[dict[str, str]]:
    """A session of a user with everything that a program may want to reach."""
    home, runtime = root / "home", root / "run"
    for one in (home, runtime):
        one.mkdir(mode=0o700)
    with ExitStack() as stack:
        for name in ("bus", "pipewire-0", "wayland-1", "runner.sock"):
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(str(runtime / name))
            listener.listen()
        yield {"PATH": os.environ["PATH"], "HOME": str(home), "XDG_RUNTIME_DIR": str(runtime)}


def tried(sandbox: Sandbox, environ: dict[str, str], *permissions: str) -> dict[str, Finding]:
    return probe(sandbox, permissions, environ, f"{environ['XDG_RUNTIME_DIR']}/runner.sock")


@pytest.mark.parametrize("names", HELD)
def test_what_is_refused_without_a_permission(names: str, tmp_path: Path) -> None:
    sandbox = made_of(names)
    with session(tmp_path) as environ:
        found = tried(sandbox, environ)
        assert found.keys() == PERMISSIONS.keys() | set(BESIDES)
        assert {about for about, one in found.items() if one.refused} - DEVICES - {
            "system secrets",
            "input devices",
        } == HELD[names], found
        # What cannot be held is found to be so by having been done.
        for about in EVERYTHING - HELD[names]:
            assert found[about].reason.startswith(("it ", "a ")), about
        if os.geteuid() == 0 and Path("/etc/shadow").exists():
            assert found["system secrets"].refused
        for about in DEVICES:
            assert found[about].refused or "that could be tried" in found[about].reason
        # Nothing of it is left.
        assert [*Path(environ["HOME"]).iterdir()] == []
        assert sorted(one.name for one in Path(environ["XDG_RUNTIME_DIR"]).iterdir()) == [
            "bus",
            "pipewire-0",
            "runner.sock",
            "wayland-1",
        ]


@pytest.mark.parametrize("permission", sorted(PERMISSIONS.keys() - DEVICES))
def test_what_one_permission_allows_and_nothing_more(permission: str, tmp_path: Path) -> None:
    sandbox = made_of("")
    with session(tmp_path) as environ:
        found = tried(sandbox, environ, permission)
    assert not found[permission].refused
    assert found[permission].reason.startswith(("it ", "a ")), found[permission]
    also = {"files.write": {"files.read"}}.get(permission, set())
    assert {about for about, one in found.items() if one.refused} >= EVERYTHING - {permission} - also, found


def test_with_everything_it_still_reaches_no_other_process_and_not_the_runner(tmp_path: Path) -> None:
    sandbox = made_of("")
    with session(tmp_path) as environ:
        found = tried(sandbox, environ, *PERMISSIONS)
    assert {about for about, one in found.items() if one.refused} >= {"other processes", "the runner's socket"}
    assert not any(found[about].refused for about in PERMISSIONS.keys() - DEVICES)


def test_paths_that_were_named_are_there_and_what_is_hidden_is_not(tmp_path: Path) -> None:
    """`read_paths`, `write_paths` and the runner's own files, as a plugin's process meets them."""
    from utter_runner.supervision.launch import abandon, launch  # noqa: PLC0415 - beside its only use
    from utter_runner.supervision.spec import PluginSpec  # noqa: PLC0415 - likewise

    with session(tmp_path) as environ:
        home = Path(environ["HOME"])
        for name in ("in", "out", "state"):
            (home / name).mkdir()
            (home / name / "file").write_text(name)
        (home / "runner.toml").write_text("token")
        sandbox = made_of("bubblewrap")
        hidden = (str(home / "state"), str(home / "runner.toml"))
        sandbox = Sandbox(wrappers=sandbox.wrappers, bwrap=sandbox.bwrap, bwrap_version=(0, 6), hidden=hidden)
        code = (
            "import os, pathlib, json\n"
            "home = pathlib.Path(os.environ['HOME'])\n"
            "def attempt(what):\n"
            "    try: return what()\n"
            "    except OSError: return 'no'\n"
            "print(json.dumps([attempt((home / one).read_text) for one in ('in/file', 'out/file', 'state/file',\n"
            "    'runner.toml')] + [attempt(lambda: (home / one / 'new').write_text('x')) for one in ('in', 'out')]))\n"
        )
        for permissions, expected in (
            ((), ["in", "out", "no", "no", "no", 1]),
            (("files.read",), ["in", "out", "no", "no", "no", 1]),
            (("files.write",), ["in", "out", "no", "no", "no", 1]),
        ):
            spec = PluginSpec(
                id="x",
                argv=(sys.executable, "-I", "-S", "-c", code),
                permissions=permissions,
                read_paths=(f"{home}/in",),
                write_paths=(f"{home}/out",),
                sandbox=sandbox,
            )
            launched = launch(spec, 1, environ)
            said, words = launched.process.communicate(timeout=60)
            abandon(launched)
            assert json.loads(said or "null") == expected, words
        assert (home / "out" / "new").exists()
        assert (home / "runner.toml").read_text() == "token"


def test_what_cannot_be_run_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    broken = Sandbox(wrappers=("bubblewrap",), bwrap="/bin/false", bwrap_version=(0, 8))
    with session(tmp_path) as environ:
        with pytest.raises(SpawnError, match="the probe could not be run in the sandbox"):
            tried(broken, environ)
        assert [*Path(environ["HOME"]).iterdir()] == []


# ---- as a user who is not root

AS_NOBODY = """
import json, os, socket, sys
listeners = [socket.socket(socket.AF_UNIX) for _ in range(3)]
for one, name in zip(listeners, ("bus", "pipewire-0", "wayland-1")):
    one.bind(os.path.join(os.environ["XDG_RUNTIME_DIR"], name))
    one.listen()
from utter_runner.supervision.sandbox.probe import probe
from utter_runner.supervision.sandbox.wrappers import find_sandbox
sandbox = find_sandbox(json.loads(sys.argv[1]), os.environ)
found = probe(sandbox, json.loads(sys.argv[2]), os.environ, "")
print(json.dumps([list(sandbox.wrappers), sorted(name for name, one in found.items() if one.refused)]))
"""


def run_as_nobody(*arguments: str) -> Any:
    """Run the script above as another user, by an interpreter of this version that others may read."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    python = f"/usr/bin/python{sys.version_info[0]}.{sys.version_info[1]}"
    if not Path(python).exists():
        pytest.skip(f"there is no {python} that other users could run")
    with tempfile.TemporaryDirectory(prefix="utter-nobody-") as directory:
        for name in ("", "home", "run"):
            path = Path(directory, name)
            path.mkdir(mode=0o700, exist_ok=True)
            os.chown(path, NOBODY, NOBODY)
        env = {
            "PATH": "/usr/bin:/bin",
            "HOME": f"{directory}/home",
            "XDG_RUNTIME_DIR": f"{directory}/run",
            "PYTHONPATH": os.pathsep.join(one for one in sys.path if one and not one.startswith(sys.base_prefix)),
        }
        argv = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--inh-caps=-all"]
        done = subprocess.run(
            [*argv, python, "-c", AS_NOBODY, *arguments],
            env=env,
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        if "ModuleNotFoundError" in done.stderr or "Permission denied" in done.stderr:
            pytest.skip(f"other users cannot read what the runner needs: {done.stderr.splitlines()[-1]}")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.mark.parametrize("names", ["bubblewrap", "landlock", "landlock,seccomp", ""])
def test_it_holds_for_a_user_without_privileges(names: str) -> None:
    sandbox = made_of(names)
    wrappers, refused = run_as_nobody(json.dumps(names.split(",") if names else None), "[]")
    assert wrappers == [*sandbox.wrappers]
    assert set(refused) >= HELD[names] - {"the runner's socket"}


def test_without_privileges_permissions_allow_what_they_say() -> None:
    made_of("bubblewrap")
    _, refused = run_as_nobody("null", json.dumps([*PERMISSIONS]))
    assert not (PERMISSIONS.keys() - DEVICES) & set(refused)
    assert "other processes" in refused


def test_the_machine_has_what_these_tests_are_about() -> None:
    """Skipping everything above would prove nothing: where bubblewrap is installed, it is expected to work."""
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    assert "bubblewrap" in find_sandbox(None, os.environ).wrappers
