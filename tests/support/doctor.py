"""A machine for the doctor, healthy at first, and the ways to spoil it one by one."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Callable
from pathlib import Path

from utter_protocol.models import content_path, link_path, link_target, models_directory, part_path
from utter_runner.operate import lockfile
from utter_runner.operate.doctor.contact import Contact
from utter_runner.operate.doctor.examine import examine
from utter_runner.operate.doctor.fake import RUNNER_PID, UID, FakeOutside, healthy, plugin, up
from utter_runner.operate.doctor.look import Options
from utter_runner.operate.doctor.model import Report
from utter_runner.operate.doctor.outside import Process, Ran, Seen
from utter_runner.operate.places import Places
from utter_runner.operate.units import SERVICE, service_unit

CONFIG = '[[plugin]]\nid = "hello"\nentrypoint = ["/bin/true"]\n'
WHOLE = b"all of the model"
TRIAL = "python3 -m utter_runner"
ABSENT = "there is no configuration"
DOWN = Contact(state="down", reason="No such file or directory")


class Bed:
    """A healthy machine, to be spoiled; `config` is what its configuration says."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / "home"
        self.runtime = root / "run"
        self.path = self.home / ".config" / "utter" / "runner.toml"
        self.path.parent.mkdir(parents=True)
        program = self.home / ".local" / "bin" / "utter-runner"
        program.parent.mkdir(parents=True)
        program.touch(mode=0o755)
        self.unit_path = self.home / ".config" / "systemd" / "user" / SERVICE
        self.unit_path.parent.mkdir(parents=True)
        self.unit_path.write_text(service_unit(program))
        self.environ = {"HOME": str(self.home), "XDG_RUNTIME_DIR": str(self.runtime), "PATH": "/usr/bin"}
        self.outside: FakeOutside = healthy(self.environ)
        self.config = CONFIG
        self.options = Options()
        self.outside.programs[TRIAL] = Ran(0, "plugins that can be run: 1; problems: 0\n")

    @property
    def socket(self) -> str:
        return f"{self.runtime}/utter/runner.sock"

    def down(self) -> None:
        """No runner runs, and none has left anything behind."""
        self.outside.contact = DOWN
        self.outside.nodes.pop(self.socket)
        self.outside.running = [one for one in self.outside.running if one.pid != RUNNER_PID]

    def unit(self, **properties: str) -> None:
        """Change what systemd says of the unit."""
        key = f"systemctl --user show {SERVICE}"
        known = self.outside.programs[key]
        assert isinstance(known, Ran)
        pairs = dict(line.split("=", 1) for line in known.out.splitlines()) | properties
        self.outside.programs[key] = Ran(0, "\n".join(map("=".join, pairs.items())))

    def no_systemd(self) -> None:
        """There is no user manager, and no unit for one."""
        self.unit_path.unlink()
        for name in [one for one in self.outside.programs if one.startswith("systemctl")]:
            self.outside.programs[name] = Ran(1, "", "Failed to connect to bus: No such file or directory")

    def environment(self, **variables: str | None) -> None:
        """Change the environment of the command."""
        merged = {**self.outside.environ, **variables}
        self.outside.environ = {name: value for name, value in merged.items() if value is not None}

    def examine(self) -> Report:
        if self.config != ABSENT:
            self.path.write_text(self.config)
        return examine(self.outside, self.options, seconds=60)


Spoil = Callable[[Bed], object]


def programs(**ran: Ran | OSError) -> Spoil:
    names = {"wpctl": "wpctl get-volume", "manager": "systemctl --user show-environment", "pwdump": "pw-dump"}
    return lambda bed: bed.outside.programs.update({names.get(name, name): one for name, one in ran.items()})


def contact(made: Contact) -> Spoil:
    return lambda bed: setattr(bed.outside, "contact", made)


def config(text: str) -> Spoil:
    return lambda bed: setattr(bed, "config", text)


def both(*spoils: Spoil) -> Spoil:
    return lambda bed: [spoil(bed) for spoil in spoils]


def down(bed: Bed) -> None:
    bed.down()


def gone(*programs: str) -> Spoil:
    def remove(bed: Bed) -> None:
        for name in programs:
            bed.outside.programs.pop(name)

    return remove


def node(path: str, seen: Seen | OSError | None) -> Spoil:
    def put(bed: Bed) -> None:
        place = path.format(run=bed.runtime)
        if seen is None:
            bed.outside.nodes.pop(place, None)
        else:
            bed.outside.nodes[place] = seen

    return put


def listener(state: str = "S", cgroup: str = "/session.scope") -> Spoil:
    def put(bed: Bed) -> None:
        bed.outside.running = [
            one._replace(state=state, cgroup=cgroup) if one.pid == RUNNER_PID else one for one in bed.outside.running
        ]

    return put


def lock(bed: Bed) -> None:
    bed.outside.nodes[f"{bed.socket}.lock"] = Seen(stat.S_IFREG | 0o600, UID, UID, inode=131)
    bed.outside.files["/proc/locks"] = (
        "1: POSIX  ADVISORY  READ 9 08:01:7 0 EOF\n2: FLOCK  ADVISORY  WRITE 77 08:01:131 0 EOF\n"
    )


def trial(*said: str) -> Spoil:
    def put(bed: Bed) -> None:
        bed.down()
        bed.outside.programs[TRIAL] = Ran(1, "", "\n".join(said))

    return put


def attribute(name: str, value: object) -> Spoil:
    return lambda bed: setattr(bed.outside, name, value)


def second_runner(bed: Bed) -> None:
    bed.outside.running.append(Process(99, ("/usr/bin/python3", "-m", "utter_runner"), environ=bed.environ))


def write_lockfile(text: str) -> Spoil:
    def put(bed: Bed) -> None:
        path = bed.home / ".local" / "state" / "utter" / "install.lock"
        path.parent.mkdir(parents=True)
        path.write_text(text)

    return put


def recorded(name: str, source: str = "") -> Spoil:
    """A record of a plugin that is not as it was."""

    def put(bed: Bed) -> None:
        path = Places.of(bed.environ).lockfile
        path.parent.mkdir(parents=True)
        digest = f"sha256:{hashlib.sha256(b'before').hexdigest()}"
        entry = lockfile.Entry(version="1.0.0", protocol="1.0", abi=1, digest=digest, permissions=[], source=source)
        lockfile.write(path, {name: entry})

    return put


def audit_closed(bed: Bed) -> None:
    bed.down()
    bed.outside.nodes[str(bed.home)] = Seen(stat.S_IFDIR | 0o500, UID, UID)
    bed.outside.unwritable.add(str(bed.home))


def groups_of_runner(*, manager: bool) -> Spoil:
    def put(bed: Bed) -> None:
        bed.outside.contact = up(
            plugin("hello"), hotkeys={"available": False, "devices": [], "detail": "None may be read."}
        )
        bed.outside.running = [
            one._replace(groups=frozenset({UID})) if one.pid == RUNNER_PID or (manager and one.pid == 800) else one
            for one in bed.outside.running
        ]

    return put


def model(*, place: str = "", content: bytes = WHOLE, name: bool = True, thorough: bool = False) -> Spoil:
    """Have the plugin hello need a model, and so much of it be there; `place` is `sha256`, `parts` or nowhere."""

    def put(bed: Bed) -> None:
        digest = hashlib.sha256(WHOLE).hexdigest()
        bed.config = (
            f'{CONFIG}[[plugin.models]]\nname = "base/model.bin"\nurl = "https://example.org/x"\n'
            f'sha256 = "{digest}"\nsize = {len(WHOLE)}\n'
        )
        bed.options = bed.options._replace(thorough=thorough)
        store = models_directory(bed.environ)
        if place:
            path = {"sha256": content_path, "parts": part_path}[place](store, digest)
            path.parent.mkdir(parents=True)
            path.write_bytes(content)
        if name:
            link = link_path(store, "hello", "base/model.bin")
            link.parent.mkdir(parents=True)
            link.symlink_to(link_target("base/model.bin", digest))

    return put
