"""Builds the guest: a minimal Debian 12 on an ext4 image, a kernel, an initial RAM disk.

Rules here: this needs root, because packages are set up in a chroot; no loop device, mount or network bridge is used.
Nothing of the runner is in the image, so that a change of the source leaves it as it is. What goes into it is named
here and lies in `root/`; both count for its key. The versions of Debian's packages do not: `python -m vm.bed build
--fresh` takes them anew.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from vm.bed.cache import BED, BedError, built, key_of

RELEASE = "bookworm"
MIRROR = "http://deb.debian.org/debian"
KERNEL = "linux-image-amd64"
USER = "alice"
# Written sparsely; only what is used takes room.
DISK_BYTES = 8 << 30

PACKAGES = [
    # A system with a user manager.
    *("systemd", "systemd-sysv", "udev", "dbus", "dbus-user-session", "libpam-systemd", "login", "passwd"),
    *("kmod", "procps", "iproute2"),
    # Sound.
    *("pipewire", "pipewire-bin", "pipewire-alsa", "pipewire-pulse", "wireplumber", "libspa-0.2-modules"),
    *("alsa-utils", "libportaudio2"),
    # The runner and its plugins.
    *("python3", "python3-venv", "bubblewrap", "xdg-utils", "espeak-ng", "libgomp1"),
    # The bed itself, and a person who looks around in it.
    *("python3-evdev", "busybox-static", "strace"),
]

# The parts of the kernel's package, 400 MB, that the guest needs.
MODULES = re.compile(
    r"kernel/(arch|crypto|lib|sound/(core|drivers|hda|pci/hda|soundcore)|net/(9p|unix)"
    r"|drivers/(virtio|input|hid/(hid|usbhid)|usb/(core|host|common)|block/virtio_blk|char/(hw_random|virtio_console))"
    r"|fs/(9p|autofs|ext4|jbd2|mbcache|fuse|overlayfs|netfs|fscache|nls))|modules\.(order|builtin)"
)
# What leads to the root file system.
BOOT_MODULES = ("virtio_pci", "virtio_blk", "crc32c_generic", "ext4")

MASKED = [
    *("getty.target", "apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "fstrim.timer"),
    *("e2scrub_all.timer", "e2scrub_reap.service", "systemd-binfmt.service", "proc-sys-fs-binfmt_misc.automount"),
]

TOOLS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "mmdebstrap": "mmdebstrap",
    "mkfs.ext4": "e2fsprogs",
    "depmod": "kmod",
    "setpriv": "util-linux",
    "dpkg-deb": "dpkg",
    "xz": "xz-utils",
}


def require_tools() -> None:
    """Raise `BedError` if a program is missing."""
    missing = [package for tool, package in TOOLS.items() if shutil.which(tool) is None]
    if missing:
        raise BedError(f"These packages are missing: {', '.join(missing)}. Run scripts/system-packages --vm.")


def require_root() -> None:
    """Raise `BedError` unless this is root."""
    if os.geteuid() != 0:
        raise BedError(
            "Building the guest needs root, for the chroot in which its packages are set up: run this once as root. "
            "After that, it needs none."
        )


def image() -> Path:
    """The directory with `rootfs`, `root.img`, `vmlinuz` and `initrd`; built if it is not there."""
    recipe = [Path(__file__), BED / "root", BED / "init"]
    return built("guest", key_of(*recipe), _build)


def _build(place: Path) -> None:
    require_tools()
    require_root()
    rootfs = place / "rootfs"
    version = _install(place, rootfs)
    _configure(rootfs)
    _initial_disk(place, rootfs, version)
    make_disk(place / "root.img", rootfs, DISK_BYTES)


def _install(place: Path, rootfs: Path) -> str:
    """Debian's packages, the kernel and its modules; returns the kernel's version."""
    mirror = os.environ.get("MIRROR") or _host_mirror() or MIRROR
    # The kernel's package is taken apart, not installed: that would build an initial RAM disk.
    download = (
        "cd /root && apt-get -o APT::Sandbox::User=root download "
        f"$(apt-cache depends --important {KERNEL} | grep -o 'linux-image-[0-9][^ ]*')"
    )
    left_out = [f"--dpkgopt=path-exclude=/usr/share/{one}/*" for one in ("doc", "man", "locale", "info")]
    hook = f'--customize-hook=chroot "$1" sh -c {shlex.quote(download)}'
    options = ["--mode=root", "--variant=minbase", f"--include={','.join(PACKAGES)}"]
    recommended = '--aptopt=APT::Install-Recommends "false"'
    sources = [f"deb {mirror} {RELEASE} main", f"deb {mirror}-security {RELEASE}-security main"]
    call(
        ["mmdebstrap", *options, recommended, *left_out, hook, RELEASE, str(rootfs), *sources],
        place / "mmdebstrap.log",
    )
    [package] = (rootfs / "root").glob("linux-image-*.deb")
    kernel = place / "kernel"
    call(["dpkg-deb", "--extract", str(package), str(kernel)], place / "kernel.log")
    package.unlink()
    [vmlinuz] = (kernel / "boot").glob("vmlinuz-*")
    vmlinuz.rename(place / "vmlinuz")
    version = vmlinuz.name.removeprefix("vmlinuz-")
    tree = kernel / "lib" / "modules" / version
    for file in tree.rglob("*"):
        inside = str(file.relative_to(tree))
        if file.is_file() and MODULES.match(inside):
            kept = rootfs / "usr" / "lib" / "modules" / version / inside
            kept.parent.mkdir(parents=True, exist_ok=True)
            file.rename(kept)
    shutil.rmtree(kernel)
    # Some kernels ship them compressed, which insmod of busybox does not read.
    if packed := [str(one) for one in (rootfs / "usr" / "lib" / "modules").rglob("*.ko.xz")]:
        call(["xz", "-d", *packed], place / "kernel.log")
    call(["depmod", "-b", str(rootfs), version], place / "kernel.log")
    return version


def _configure(rootfs: Path) -> None:
    """A user who lingers, the bed's own files, no unit that is of no use here."""
    chroot(rootfs, ["useradd", "-m", "-s", "/bin/bash", "-G", "input,audio", USER])
    shutil.copytree(BED / "root", rootfs, dirs_exist_ok=True)
    linger = rootfs / "var" / "lib" / "systemd" / "linger"
    linger.mkdir(parents=True, exist_ok=True)
    (linger / USER).touch()
    units = rootfs / "etc" / "systemd" / "system"
    for unit in MASKED:
        (units / unit).unlink(missing_ok=True)
        (units / unit).symlink_to("/dev/null")
    wants = units / "multi-user.target.wants"
    wants.mkdir(exist_ok=True)
    (wants / "bed-agent.service").symlink_to("../bed-agent.service")
    shutil.rmtree(rootfs / "var" / "lib" / "apt" / "lists")
    for file in (rootfs / "var" / "cache" / "apt").glob("*.bin"):
        file.unlink()


def _initial_disk(place: Path, rootfs: Path, version: str) -> None:
    """An archive of busybox, the modules in the order in which they are loaded, and `init`."""
    tree = place / "initial"
    for name in ("bin", "dev", "proc", "sys", "root", "m"):
        (tree / name).mkdir(parents=True)
    shutil.copy(rootfs / "bin" / "busybox", tree / "bin" / "busybox")
    shutil.copy(BED / "init", tree / "init")
    order: list[str] = []
    for module in BOOT_MODULES:
        shown = _output(["modprobe", "-d", str(rootfs), "-S", version, "--show-depends", module])
        for line in shown.splitlines():
            if line.startswith("insmod"):
                file = Path(line.split()[1])
                if file.name not in order:
                    order.append(file.name)
                    shutil.copy(file, tree / "m" / file.name)
    (tree / "m" / "order").write_text("".join(f"{one}\n" for one in order))
    names = "\n".join(str(one.relative_to(tree)) for one in sorted(tree.rglob("*")))
    archive = subprocess.run(
        [tree / "bin" / "busybox", "cpio", "-o", "-H", "newc"],
        input=names.encode(),
        cwd=tree,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    (place / "initrd").write_bytes(archive.stdout)
    shutil.rmtree(tree)


def make_disk(path: Path, tree: Path, size: int) -> None:
    """An ext4 image of `size` bytes with what is in `tree`."""
    with path.open("wb") as file:
        file.truncate(size)
    call(["mkfs.ext4", "-q", "-E", "lazy_itable_init=1", "-d", str(tree), str(path)], path.with_suffix(".log"))


def chroot(rootfs: Path, argv: Sequence[str], log: Path | None = None) -> None:
    """Run a command inside of the guest's files, at the speed of this machine."""
    call(["chroot", str(rootfs), "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", *argv], log)


def _host_mirror() -> str:
    """The mirror of Debian that this machine uses, or nothing."""
    if shutil.which("apt-get") is None:
        return ""
    sites = _output(["apt-get", "indextargets", "--format", "$(SITE)"]).splitlines()
    return next((site for site in sites if site.endswith("/debian")), "")


def _output(argv: Sequence[str]) -> str:
    return subprocess.run(argv, stdout=subprocess.PIPE, check=True, text=True).stdout


def call(argv: Sequence[str], log: Path | None = None) -> None:
    """Run a command; what it prints goes to a log, whose end is told if it fails."""
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if log is not None:
        with log.open("ab") as file:
            file.write(done.stdout)
    if done.returncode:
        end = "\n".join(done.stdout.decode(errors="replace").splitlines()[-20:])
        raise BedError(f"{Path(argv[0]).name} failed with exit code {done.returncode}; its last lines:\n{end}")
