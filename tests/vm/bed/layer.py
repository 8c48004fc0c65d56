"""Builds the disk with the runner: a virtual environment that pip filled from the lock file and the tree's own wheel.

Rules here: what is installed is what a user installs, `utter-runner[all]` out of a wheel, with the very versions whose
hashes stand in requirements.lock. pip fetches and builds on this machine, with this machine's settings; in the guest's
files it installs without a network. The dependencies are kept by the lock file's key, so that a change of the source
installs one wheel.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from vm.bed.cache import BED, ROOT, BedError, built, key_of
from vm.bed.image import USER, call, chroot, make_disk, require_root

# Where it is in the guest: where the README puts it.
VENV = f"/home/{USER}/.local/share/utter/venv"
# The same for every build, because a checkpoint knows how large its disks are.
DISK_BYTES = 4 << 30
# The guest's, Debian 12's. What is compiled for it has to be compiled with it.
PYTHON = "3.11"
_SOURCES = (
    "protocol",
    "runner",
    "plugins/utter_sdk",
    "plugins/utter_plugins",
    "systemd",
    "man",
    "README.md",
    "LICENSE",
)
_REQUIREMENTS = (ROOT / "requirements.lock", BED / "requirements.txt")
_UID = "1000:1000"
# Both install into the same files.
_LOCK = "chroot"
# Where the guest's files take what pip is to install.
_SHARED = "root"


def wheels() -> Path:
    """The directory with a wheel of everything in requirements.lock, each checked against its hash."""
    return built("wheels", key_of(*_REQUIREMENTS), _build_wheels)


def runner_disk(guest: Path) -> Path:
    """The directory with `runner.img` for the current tree, built if it is not there.

    Args:
        guest: the guest's directory, as `image` gives it.
    """
    environment = _environment(guest)
    sources = [ROOT / one for one in _SOURCES if (ROOT / one).exists()]
    return built(
        "runner", key_of(environment.name, *sources), lambda place: _build_disk(place, guest, environment), _LOCK
    )


def in_use(guest: Path) -> tuple[Path, ...]:
    """What the runner's disk was built from."""
    return wheels(), _environment(guest)


def _environment(guest: Path) -> Path:
    recipe = [Path(__file__), *_REQUIREMENTS, ROOT / "pyproject.toml", guest.name]
    return built("environment", key_of(*recipe), lambda place: _build_environment(place, guest), _LOCK)


def _build_wheels(place: Path) -> None:
    listed = [word for file in _REQUIREMENTS for word in ("-r", str(file))]
    call([*_pip(), "wheel", "--quiet", "--require-hashes", *listed, "-w", str(place)])


def _pip() -> list[str]:
    """pip of the guest's version of Python."""
    found = subprocess.run(
        [ROOT / "scripts" / "find-python", PYTHON], stdout=subprocess.PIPE, text=True, check=False
    ).stdout.strip()
    if not found:
        raise BedError(f"The guest has Python {PYTHON}, and evdev is compiled for it here: install Python {PYTHON}.")
    return [found, "-m", "pip", "--disable-pip-version-check"]


def _build_environment(place: Path, guest: Path) -> None:
    """The virtual environment with all dependencies, and the runner as it is now."""
    require_root()
    rootfs = guest / "rootfs"
    shutil.rmtree(rootfs / VENV[1:], ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=rootfs / _SHARED) as shared:
        inside = f"/{_SHARED}/{Path(shared).name}"
        for one in wheels().glob("*.whl"):
            shutil.copy(one, shared)
        wheel = _own_wheel(Path(shared))
        chroot(rootfs, ["python3", "-m", "venv", VENV])
        install = [
            f"{VENV}/bin/pip",
            "install",
            "--quiet",
            "--no-index",
            "--no-cache-dir",
            "--disable-pip-version-check",
        ]
        chroot(rootfs, [*install, "--find-links", inside, f"{inside}/{wheel}[all]", "pocketsphinx"])
    shutil.move(rootfs / VENV[1:], place / "venv")


def _build_disk(place: Path, guest: Path, environment: Path) -> None:
    """The disk: the environment, with the tree's wheel in place of the one that it was built with."""
    require_root()
    rootfs = guest / "rootfs"
    inside = rootfs / VENV[1:]
    shutil.rmtree(inside, ignore_errors=True)
    call(["cp", "-a", str(environment / "venv"), str(inside)])
    with tempfile.TemporaryDirectory(dir=rootfs / _SHARED) as shared:
        wheel = _own_wheel(Path(shared))
        install = [
            f"{VENV}/bin/pip",
            "install",
            "--quiet",
            "--no-index",
            "--no-cache-dir",
            "--disable-pip-version-check",
        ]
        chroot(rootfs, [*install, "--no-deps", "--force-reinstall", f"/{_SHARED}/{Path(shared).name}/{wheel}"])
    chroot(rootfs, ["chown", "-R", _UID, f"/home/{USER}"])
    make_disk(place / "runner.img", inside, DISK_BYTES)
    shutil.rmtree(inside)


def _own_wheel(place: Path) -> str:
    """Build the tree's wheel into `place`; return its name."""
    before = set(place.glob("*.whl"))
    call([*_pip(), "wheel", "--quiet", "--no-deps", "-w", str(place), str(ROOT)])
    [wheel] = set(place.glob("*.whl")) - before
    return wheel.name
