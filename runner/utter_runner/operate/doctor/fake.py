"""A machine that is whatever a test, or somebody who works on the checks, says that it is.

Rules here: nothing outside of this process is touched; what was not said to be there is not there. `healthy` is a
desktop on which everything is in order, to be spoiled one thing at a time.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from typing import TYPE_CHECKING, Any

from utter_protocol import ABI, PROTOCOL
from utter_runner import __version__
from utter_runner.operate.doctor.contact import Contact, Heard
from utter_runner.operate.doctor.outside import PATIENCE_S, Process, Ran, Seen, Space
from utter_runner.operate.units import DEFAULT_TARGET, SERVICE, SOCKET

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

UID = 1000
INPUT = 104
"""The number of the group that may read keyboards here."""
RUNNER_PID = 4711
RIGHT_CTRL = 1 << 97
"""The key bitmap of a keyboard that has the right Ctrl key and no other."""


class FakeOutside:
    """See above; the attributes are what there is, and may be changed at any time.

    Attributes:
        files: what reading a path gives: text, or the error.
        nodes: what stat(2) says of a path, or the error; a path of `files` alone is a file of this user.
        unreadable: paths that may not be opened although they are there.
        unwritable: paths that may not be written.
        programs: what a program does, by its name or by its first words, joined with blanks; or the error.
        sound: what recording gives, and what the recorder says.
        modules: modules that are not installed.
        names_of: group names by number.
        contact: what the runner answers.
        heard: what is heard through it.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ: Mapping[str, str] = environ
        self.pace = 1.0
        self.interpreter = f"{environ['HOME']}/.local/bin/python3"
        self.uid = UID
        self.user = "ada"
        self.files: dict[str, str | OSError] = {}
        self.nodes: dict[str, Seen | OSError] = {}
        self.unreadable: set[str] = set()
        self.unwritable: set[str] = set()
        self.programs: dict[str, Ran | OSError] = {}
        self.ran: list[list[str]] = []
        self.sound: tuple[bytes, str] = (b"", "")
        self.modules: set[str] = set()
        self.session_groups = frozenset({UID})
        self.login_groups = frozenset({UID})
        self.names_of = {INPUT: "input"}
        self.spaces: dict[str, Space] = {}
        self.descriptors = 1_048_576
        self.priority = 95
        self.running: list[Process] = []
        self.landlock_abi = 0
        self.contact = Contact(state="down", reason="there is no socket")
        self.heard = Heard(problem="there is no runner")

    def read(self, path: str) -> str:
        """See `Outside.read`."""
        found = self.files.get(path, FileNotFoundError(errno.ENOENT, "No such file or directory"))
        if isinstance(found, OSError):
            raise found
        return found

    def stat(self, path: str) -> Seen:
        """See `Outside.stat`."""
        found = self.nodes.get(path)
        if isinstance(found, OSError):
            raise found
        if found is None:
            self.read(path)
            return Seen(stat.S_IFREG | 0o600, self.uid, self.uid)
        return found

    def names(self, path: str) -> list[str]:
        """See `Outside.names`."""
        found = {
            place.removeprefix(f"{path}/").partition("/")[0]
            for place in [*self.files, *self.nodes]
            if place.startswith(f"{path}/")
        }
        if not found and path not in self.nodes:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        return sorted(found)

    def can_read(self, path: str) -> bool:
        """See `Outside.can_read`."""
        return path not in self.unreadable and (path in self.files or path in self.nodes)

    def can_write(self, path: str) -> bool:
        """See `Outside.can_write`."""
        return path not in self.unwritable

    def which(self, program: str) -> str | None:
        """See `Outside.which`."""
        known = any(
            words.split()[0] == program and not isinstance(ran, OSError) for words, ran in self.programs.items()
        )
        return f"/usr/bin/{program}" if known else None

    def run(self, argv: Sequence[str], *, timeout: float = PATIENCE_S) -> Ran:  # noqa: ARG002 - nothing takes time here
        """See `Outside.run`. The longest words that fit decide."""
        self.ran.append([*argv])
        words = " ".join([os.path.basename(argv[0]), *argv[1:]])  # noqa: PTH119 - text
        for known in sorted(self.programs, key=len, reverse=True):
            if words == known or words.startswith(f"{known} "):
                found = self.programs[known]
                if isinstance(found, OSError):
                    raise found
                return found
        raise FileNotFoundError(errno.ENOENT, f"there is no program {argv[0]}")

    def sample(self, argv: Sequence[str], size: int, *, timeout: float = PATIENCE_S) -> tuple[bytes, str]:  # noqa: ARG002 - as above
        """See `Outside.sample`."""
        self.ran.append([*argv])
        frames, said = self.sound
        return frames[:size], said

    def groups(self) -> frozenset[int]:
        """See `Outside.groups`."""
        return self.session_groups

    def account_groups(self) -> frozenset[int]:
        """See `Outside.account_groups`."""
        return self.login_groups

    def group_name(self, gid: int) -> str:
        """See `Outside.group_name`."""
        return self.names_of.get(gid, str(gid))

    def space(self, path: str) -> Space:
        """See `Outside.space`."""
        return self.spaces.get(path, Space(50 * 2**30, 1_000_000))

    def file_limit(self, pid: int | None) -> int:  # noqa: ARG002 - all processes have the same here
        """See `Outside.file_limit`."""
        return self.descriptors

    def rtprio(self) -> int:
        """See `Outside.rtprio`."""
        return self.priority

    def processes(self) -> list[Process]:
        """See `Outside.processes`."""
        return [*self.running]

    def installed(self, module: str) -> bool:
        """See `Outside.installed`."""
        return module not in self.modules

    def landlock(self) -> int:
        """See `Outside.landlock`."""
        return self.landlock_abi

    def reach(self, path: str, token: str | None) -> Contact:  # noqa: ARG002 - there is one runner here
        """See `Outside.reach`."""
        return self.contact

    def hear(self, path: str, token: str | None) -> Heard:  # noqa: ARG002 - as above
        """See `Outside.hear`."""
        return self.heard


def keyboard(outside: FakeOutside, node: str, name: str, keys: int = RIGHT_CTRL) -> str:
    """Plug a keyboard in; return the path of its node. Keys are those of the bitmap `keys`."""
    words: list[str] = []
    while keys:
        words.insert(0, f"{keys & (1 << 64) - 1:x}")
        keys >>= 64
    place = f"/sys/class/input/{node}/device"
    outside.files[f"{place}/name"] = f"{name}\n"
    outside.files[f"{place}/capabilities/key"] = " ".join(words) + "\n"
    outside.nodes[f"/dev/input/{node}"] = Seen(stat.S_IFCHR | 0o660, 0, INPUT)
    return f"/dev/input/{node}"


def pipewire(*sources: str, default: str = "") -> str:
    """What pw-dump prints where there are these microphones and a loudspeaker."""
    nodes = [(name, "Audio/Source") for name in sources] + [("speaker", "Audio/Sink")]
    objects: list[dict[str, Any]] = [
        {"id": 0, "type": "PipeWire:Interface:Core", "info": {"version": "1.2.7"}},
        *(
            {
                "id": number,
                "type": "PipeWire:Interface:Node",
                "info": {"props": {"node.name": name, "media.class": kind, "object.serial": number}},
            }
            for number, (name, kind) in enumerate(nodes, 30)
        ),
        {
            "id": 40,
            "type": "PipeWire:Interface:Metadata",
            "props": {"metadata.name": "default"},
            "metadata": [{"key": "default.audio.source", "value": {"name": default or "".join(sources[:1])}}],
        },
    ]
    return json.dumps(objects)


def plugin(name: str, **told: Any) -> dict[str, Any]:
    """What `runner.status` says of a plugin that is in order, with what is told otherwise."""
    return {
        "id": name,
        "kind": "action",
        "version": "1.0.0",
        "epoch": 1,
        "status": "ready",
        "detail": "",
        "pid": 4720,
        "missing_requires": [],
        "permissions": [],
        "negotiated": {"protocol": PROTOCOL, "abi": ABI},
        "restarts": 0,
        "sandbox": {"wrappers": [], "permissions": [], "reasons": {}},
        **told,
    }


def hotkeys(**told: Any) -> dict[str, Any]:
    """What `runner.status` says of the key where a keyboard is watched, with what is told otherwise."""
    unused = {"state": "standby", "available": False, "version": None, "bound": False, "triggers": {}, "detail": ""}
    return {
        "available": True,
        "devices": ["AT Keyboard"],
        "detail": "",
        "path": "evdev",
        "evdev": {"available": True, "detail": ""},
        "portal": unused,
        "seen": {"evdev": 4.2, "portal": None, "ptt": None},
        **told,
    }


def up(*plugins: dict[str, Any], validations: dict[str, dict[str, Any]] | None = None, **told: Any) -> Contact:
    """A runner that answers; `told` goes into its status."""
    status = {
        "version": __version__,
        "protocol": PROTOCOL,
        "abi": ABI,
        "pid": RUNNER_PID,
        "state": "ready",
        "plugins": [*plugins],
        "hotkeys": hotkeys(),
        "audio": {"capture": "always", "open": True, "device": "mic", "faults": 0, "detail": ""},
        "content_logging": False,
        "audit": {"mode": "on", "path": "/home/ada/.local/state/utter/audit.jsonl", "detail": "", "lost": 0},
        "service": {"manager": True, "watchdog_s": 30.0, "socket_activated": False},
        "warnings": [],
        **told,
    }
    return Contact(state="up", pid=RUNNER_PID, status=status, validations=validations or {})


def healthy(environ: Mapping[str, str]) -> FakeOutside:
    """A desktop on which all is well: a runner that systemd has started, a keyboard, a microphone.

    Args:
        environ: with HOME and XDG_RUNTIME_DIR; where they say, there are a configuration, the unit of the service, and
            the runner beside `interpreter`.
    """
    runtime = environ["XDG_RUNTIME_DIR"]
    desktop = {"WAYLAND_DISPLAY": "wayland-1", "DBUS_SESSION_BUS_ADDRESS": f"unix:path={runtime}/bus"}
    outside = FakeOutside({**environ, **desktop})
    outside.session_groups = outside.login_groups = frozenset({UID, INPUT})
    keyboard(outside, "event3", "AT Keyboard")
    for path in (runtime, f"{runtime}/utter"):
        outside.nodes[path] = Seen(stat.S_IFDIR | 0o700, UID, UID)
    for path in (f"{runtime}/utter/runner.sock", f"{runtime}/pipewire-0", f"{runtime}/pulse/native"):
        outside.nodes[path] = Seen(stat.S_IFSOCK | 0o600, UID, UID)
    outside.files["/proc/sys/kernel/osrelease"] = "6.1.0-28-amd64\n"
    outside.files["/proc/sys/fs/inotify/max_user_instances"] = "128\n"
    outside.files["/proc/sys/fs/inotify/max_user_watches"] = "65536\n"
    outside.landlock_abi = 4
    program = f"{environ['HOME']}/.local/bin/utter-runner"
    unit = {
        "LoadState": "loaded",
        "FragmentPath": f"{environ['HOME']}/.config/systemd/user/{SERVICE}",
        "ActiveState": "active",
        "UnitFileState": "enabled",
        "NeedDaemonReload": "no",
        "ExecStart": f"{{ path={program} ; argv[]={program} ; }}",
    }
    outside.programs = {
        "systemctl --user show": Ran(0, "Version=257\n"),
        f"systemctl --user show {SERVICE}": Ran(0, "\n".join(f"{name}={value}" for name, value in unit.items())),
        f"systemctl --user show {SOCKET}": Ran(0, "LoadState=not-found\nActiveState=inactive\n"),
        f"systemctl --user show {DEFAULT_TARGET}": Ran(0, "ActiveState=active\n"),
        "systemctl --user show-environment": Ran(0, "\n".join(f"{name}={value}" for name, value in desktop.items())),
        "loginctl": Ran(0, "no\n"),
        "pw-dump": Ran(0, pipewire("mic")),
        "wpctl get-volume": Ran(0, "Volume: 0.40\n"),
        "dbus-send": Ran(0, "method return\n   variant       uint32 1\n"),
        "apt": Ran(0),
        "bwrap": Ran(0),
        "systemd-run": Ran(0),
        "pw-record": Ran(0),
        "stdbuf": Ran(0),
        program: Ran(0),
    }
    outside.sound = (b"\0\0\0\x3e" * 16_000, "")
    outside.running = [
        Process(800, ("/usr/lib/systemd/systemd", "--user"), groups=outside.session_groups),
        Process(900, ("/usr/bin/wireplumber",)),
        Process(
            RUNNER_PID,
            ("/usr/bin/python3", program),
            cgroup=f"/user.slice/user@{UID}.service/app.slice/{SERVICE}",
            groups=outside.session_groups,
            environ=outside.environ,
        ),
    ]
    outside.contact = up(plugin("hello"))
    outside.heard = Heard(peak_db=-32.0, device="mic")
    return outside
