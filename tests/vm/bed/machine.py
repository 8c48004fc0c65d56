"""Runs the guest: makes the checkpoint once, and restores it whenever a guest is wanted.

Rules here: the machine must be the very same one for the checkpoint and for what is restored from it, so that one
function makes its command line, and that counts for the key. Whatever a guest writes is thrown away, but for what it
puts into its shared directory. No accelerator and no network is used, so that it runs wherever QEMU does.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from vm.bed.cache import BedError, built, key_of, prune
from vm.bed.image import image, require_tools
from vm.bed.layer import DISK_BYTES, in_use, runner_disk, wheels
from vm.bed.qmp import Qmp, connect

MEMORY_MIB = 3072
PROCESSORS = 2
# tsc=reliable: emulated processors' clocks look out of step, and reading any other clock leaves the emulated code.
_KERNEL = "console=ttyS0 quiet mitigations=off panic=-1 audit=0 random.trust_cpu=on systemd.show_status=0 tsc=reliable"
_BOOT_SECONDS = 600.0
_STARTED_SECONDS = 30.0
_RESTORED_SECONDS = 120.0
# After the guest says that it is ready, what still starts in the background may finish.
_SETTLE_SECONDS = 5.0


class Machine:
    """A process of QEMU.

    Args:
        directory: where its sockets, its console and the directory that it shares go.
        guest: the directory with the kernel.
        disks: the root disk and the runner's, as arguments of `-drive`.
        restore: a saved state to begin with, in place of booting.

    Attributes:
        shared: what the guest sees as /mnt/host.
        console: what the kernel said.
    """

    def __init__(self, directory: Path, guest: Path, disks: tuple[str, str], restore: Path | None = None) -> None:
        self.directory = directory
        self.shared = directory / "shared"
        self.console = directory / "console"
        # The guest's users are others than this one.
        directory.chmod(0o755)
        self.shared.mkdir()
        self.shared.chmod(0o777)
        self._errors = (directory / "qemu.log").open("wb")
        self.process = subprocess.Popen(
            self._command(guest, disks, restore),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
        )
        try:
            self.port = connect(directory / "agent", _STARTED_SECONDS)
        except BedError as error:
            self.kill()
            raise BedError(f"{error} {(directory / 'qemu.log').read_text(errors='replace')}") from None

    def _command(self, guest: Path, disks: tuple[str, str], restore: Path | None) -> list[str]:
        shared = f"local,path={self.shared},mount_tag=host,security_model=none"
        return [
            # It ends with whoever started it, however that ends.
            *("setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64"),
            # 57-bit addresses cost a level of page table in every walk.
            *("-accel", "tcg,tb-size=512", "-cpu", "max,la57=off", "-M", "q35"),
            *("-m", str(MEMORY_MIB), "-smp", str(PROCESSORS)),
            *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-nic", "none"),
            *("-serial", f"file:{self.console}", "-serial", "chardev:agent"),
            *("-chardev", f"socket,id=agent,path={self.directory}/agent,server=on,wait=off"),
            *("-qmp", f"unix:{self.directory}/qmp,server=on,wait=off", "-device", "virtio-rng-pci"),
            *("-kernel", str(guest / "vmlinuz"), "-initrd", str(guest / "initrd"), "-append"),
            _KERNEL,
            *("-virtfs", shared, "-drive", disks[0], "-drive", disks[1]),
            *(["-incoming", f"exec:cat '{restore}'"] if restore else []),
        ]

    def kill(self) -> None:
        """End it, unless it has ended."""
        with suppress(AttributeError):
            self.port.close()
        self.process.kill()
        self.process.wait()
        self._errors.close()


def checkpoint(guest: Path) -> Path:
    """The directory with `ready.qcow2` and `ready.ram`: the guest, booted, with sound, and no runner disk mounted."""
    recipe = [guest.name, *(Path(__file__).with_name(one) for one in ("machine.py", "qmp.py"))]
    return built("checkpoint", key_of(*recipe), lambda place: _build(place, guest))


def restored(guest: Path, directory: Path) -> Machine:
    """A guest that continues from the checkpoint, with the current tree's runner on its second disk."""
    saved = checkpoint(guest)
    disk = runner_disk(guest) / "runner.img"
    drives = (
        f"file={saved}/ready.qcow2,if=virtio,snapshot=on,cache=unsafe",
        f"file={disk},format=raw,if=virtio,snapshot=on,cache=unsafe",
    )
    machine = Machine(directory, guest, drives, saved / "ready.ram")
    try:
        _wait_loaded(directory)
    except BaseException:
        machine.kill()
        raise
    return machine


def _wait_loaded(directory: Path) -> None:
    """Wait until the guest runs: what reaches the serial port before its state is loaded is lost."""
    with Qmp(directory / "qmp", _RESTORED_SECONDS) as qmp:
        deadline = time.monotonic() + _RESTORED_SECONDS
        while (state := qmp.call("query-status")["status"]) != "running":
            if time.monotonic() > deadline:
                raise BedError(f"The guest's state was not loaded within {_RESTORED_SECONDS:.0f} s: {state}.")
            time.sleep(0.05)


def build_all(*, tidy: bool = False) -> Path:
    """Build what is missing; return the guest's directory. `tidy`: delete what the tree does not use any more."""
    require_tools()
    # The one downloads and compiles while the other downloads and unpacks.
    with ThreadPoolExecutor() as pool:
        fetched = pool.submit(wheels)
        guest = image()
        booted = pool.submit(checkpoint, guest)
        fetched.result()
        disk = runner_disk(guest)
        if tidy:
            prune(guest, booted.result(), disk, *in_use(guest))
        booted.result()
    return guest


def _build(place: Path, guest: Path) -> None:
    blank = place / "blank.img"
    with blank.open("wb") as file:
        file.truncate(DISK_BYTES)
    overlay = place / "ready.qcow2"
    base = ["-b", str(guest / "root.img"), "-F", "raw", str(overlay)]
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", *base], check=True)
    drives = (f"file={overlay},if=virtio,cache=unsafe", f"file={blank},format=raw,if=virtio,cache=unsafe")
    directory = Path(tempfile.mkdtemp(prefix="utter-vm-"))
    machine = Machine(directory, guest, drives)
    try:
        machine.port.settimeout(_BOOT_SECONDS)
        with machine.port.makefile("rb") as lines:
            said = lines.readline()
        if not said or not json.loads(said)["ready"]:
            console = machine.console.read_text(errors="replace")[-2000:]
            raise BedError(f"The guest did not boot: {said.decode()}\n{console}")
        time.sleep(_SETTLE_SECONDS)
        with Qmp(directory / "qmp", _BOOT_SECONDS) as qmp:
            # Not stopped before it is saved: it would be restored stopped.
            qmp.call("migrate-set-parameters", **{"max-bandwidth": 1 << 40})
            qmp.call("migrate", uri=f"exec:cat > '{place}/ready.ram'")
            while (state := qmp.call("query-migrate").get("status")) != "completed":
                if state == "failed":
                    raise BedError("QEMU could not save the guest's state.")
                time.sleep(0.1)
            qmp.call("quit")
        machine.process.wait(_STARTED_SECONDS)
    except TimeoutError:
        raise BedError(f"The guest did not boot within {_BOOT_SECONDS:.0f} s.") from None
    finally:
        machine.kill()
        shutil.rmtree(directory)
