"""Each thing that can be wrong, provoked on a machine that is otherwise healthy, and what the doctor says of it."""

from __future__ import annotations

import ast
import errno
import os
import re
import stat
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.doctor import (
    ABSENT,
    CONFIG,
    Bed,
    Spoil,
    attribute,
    audit_closed,
    both,
    config,
    contact,
    down,
    gone,
    groups_of_runner,
    listener,
    lock,
    node,
    programs,
    second_runner,
    trial,
    write_lockfile,
)
from utter_protocol.capabilities import Deprecation, Entry, Registry
from utter_runner.operate.doctor import examine as examination
from utter_runner.operate.doctor import keys, plugins
from utter_runner.operate.doctor.contact import Contact, Heard
from utter_runner.operate.doctor.fake import (
    INPUT,
    RUNNER_PID,
    UID,
    keyboard,
    pipewire,
    plugin,
    up,
)
from utter_runner.operate.doctor.look import Options
from utter_runner.operate.doctor.model import Finding, Report
from utter_runner.operate.doctor.outside import Process, Ran, Seen, Space
from utter_runner.operate.doctor.registry import CHECKS

PACKAGE = Path(examination.__file__).parent

provoked: set[tuple[str, int]] = set()
"""The calls that made a finding, by module and line; what all tests of this module have provoked."""


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bed:
    for name, module in list(sys.modules.items()):
        if name.startswith("utter_runner.operate.doctor."):
            for maker in ("ok", "warning", "broken"):
                if name != "utter_runner.operate.doctor.model" and hasattr(module, maker):
                    monkeypatch.setattr(module, maker, partial(_noted, getattr(module, maker)))
    return Bed(tmp_path)


def _noted(make: Callable[..., Finding], *args: Any) -> Finding:
    frame = sys._getframe(1)
    provoked.add((Path(frame.f_code.co_filename).name, frame.f_lineno))
    return make(*args)


def found(report: Report, check: str) -> list[Finding]:
    return [finding for finding in report.findings if finding.check == check]


def test_a_healthy_machine_is_fine(bed: Bed) -> None:
    report = bed.examine()
    assert [finding for finding in report.findings if finding.status != "ok"] == []
    assert (report.ok, report.exit, report.state) == (True, 0, "up")
    # Each check has something to say of it.
    assert {finding.check for finding in report.findings} == set(CHECKS)


NO_KEYS = {"hotkeys": {"available": False, "devices": [], "detail": "It watches none."}}
ENFORCE = CONFIG + "[security]\nenforce = true\n"
LEFT = Seen(stat.S_IFSOCK | 0o600, UID, UID)
DIRECTORY = stat.S_IFDIR
UNHEARD = both(attribute("heard", Heard(peak_db=-120.0, device="mic")))

CASES: list[tuple[str, Spoil, str, str, str]] = [
    # --- config
    ("no configuration", config(ABSENT), "config.file", "broken", "^utter config init$"),
    ("no TOML", config("[audio\n"), "config.file", "broken", r"^Edit .*runner\.toml:1$"),
    ("a wrong key", config("[audio]\nsauce = 1\n"), "config.file", "broken", r"Edit .*runner\.toml:2"),
    (
        "a hotkey that the daemon refuses",
        trial('push_to_talk: "X" is no key.'),
        "config.start",
        "broken",
        "Edit .*runner.toml",
    ),
    (
        "the daemon's check crashes",
        trial("Traceback (most recent call last):", "ValueError: x"),
        "config.start",
        "broken",
        "Edit",
    ),
    (
        "an unwise policy",
        config(CONFIG + '[socket]\nallow_binaries = ["/usr/bin/python3"]\n'),
        "config.start",
        "warning",
        "Edit",
    ),
    (
        "content in the log",
        contact(up(plugin("hello"), content_logging=True)),
        "config.content",
        "warning",
        r"\[log\] content = false",
    ),
    (
        "another socket",
        config(CONFIG + '[runner]\nsocket_path = "/s/r.sock"\n'),
        "config.socket",
        "warning",
        "export UTTER_SOCKET=/s/r.sock",
    ),
    (
        "a socket on the command line that is not the configured one",
        both(
            config(CONFIG + '[runner]\nsocket_path = "/s/r.sock"\n'),
            lambda bed: setattr(bed, "options", Options(socket="/o")),
        ),
        "config.socket",
        "warning",
        "export UTTER_SOCKET=/s/r.sock",
    ),
    (
        "a token file that others can read",
        lambda bed: setattr(
            bed, "options", Options(token_problem="The token file /t is open to other users. Run: chmod 600 /t")
        ),
        "config.token",
        "broken",
        "^chmod 600 /t$",
    ),
    (
        "a secret that is not set",
        config(CONFIG + '[plugin.secret_env]\nKEY = "env:NOT_SET_AT_ALL"\n'),
        "config.secrets",
        "broken",
        r"Edit .*:\d+",
    ),
    (
        "a token of the socket that is not there",
        config(CONFIG + '[socket]\ntoken = "file:/nowhere/token"\n'),
        "config.secrets",
        "broken",
        r"Edit .*:\d+",
    ),
    # --- runner
    ("down", down, "runner.answers", "broken", "^systemctl --user start utter-runner$"),
    ("down without systemd", both(down, Bed.no_systemd), "runner.answers", "broken", "^utter-runner$"),
    ("stale", both(down, contact(Contact(state="stale"))), "runner.answers", "broken", "start utter-runner"),
    ("no socket, and a lock", both(down, lock), "runner.answers", "broken", "^kill 77$"),
    ("starting", contact(up(plugin("hello"), state="starting")), "runner.answers", "warning", "utter status"),
    (
        "wedged as a service",
        contact(Contact(state="wedged", pid=RUNNER_PID)),
        "runner.answers",
        "broken",
        "^systemctl --user restart",
    ),
    (
        "wedged by hand",
        both(contact(Contact(state="wedged", pid=RUNNER_PID)), listener()),
        "runner.answers",
        "broken",
        "^kill -KILL 4711$",
    ),
    (
        "stopped",
        both(contact(Contact(state="wedged", pid=RUNNER_PID)), listener("T")),
        "runner.answers",
        "broken",
        "^kill -CONT 4711$",
    ),
    (
        "refused",
        contact(Contact(state="refused", reason="no", pid=RUNNER_PID)),
        "runner.answers",
        "broken",
        "utter token new cli",
    ),
    (
        "somebody else's socket",
        both(contact(Contact(state="refused")), node("{run}/utter/runner.sock", Seen(stat.S_IFSOCK, 5, 5))),
        "runner.answers",
        "broken",
        "^sudo -u '#5' utter doctor$",
    ),
    (
        "a closed socket",
        contact(Contact(state="refused", reason="Permission denied")),
        "runner.answers",
        "broken",
        "^chmod 600",
    ),
    (
        "no runtime directory",
        lambda bed: bed.environment(XDG_RUNTIME_DIR=None),
        "runner.answers",
        "broken",
        "^export XDG_RUNTIME_DIR=/run/user/1000$",
    ),
    (
        "a file in place of the socket",
        both(contact(Contact(state="unreachable")), node("{run}/utter/runner.sock", Seen(stat.S_IFREG, UID, UID))),
        "runner.answers",
        "broken",
        "^mv ",
    ),
    (
        "another program on the socket",
        both(contact(Contact(state="unreachable", pid=RUNNER_PID)), listener()),
        "runner.answers",
        "broken",
        "^kill 4711 && utter-runner$",
    ),
    (
        "another version",
        contact(up(plugin("hello"), version="0.0.1")),
        "runner.version",
        "warning",
        "restart utter-runner",
    ),
    ("two runners", second_runner, "runner.single", "warning", "^kill 99$"),
    (
        "a warning with a command",
        contact(up(plugin("hello"), warnings=["It is open. Run: chmod 700 /x"])),
        "runner.warnings",
        "warning",
        "^chmod 700 /x$",
    ),
    (
        "a warning with a place",
        contact(up(plugin("hello"), warnings=["/c/r.toml:7: It is odd."])),
        "runner.warnings",
        "warning",
        "^Edit /c/r.toml:7$",
    ),
    (
        "a warning without",
        contact(up(plugin("hello"), warnings=["Odd."])),
        "runner.warnings",
        "warning",
        "^utter status$",
    ),
    # --- keys
    ("no evdev", both(down, attribute("modules", {"evdev"})), "keys.path", "broken", "^pip install evdev$"),
    (
        "a key that is none",
        both(down, config(CONFIG + '[hotkeys]\npush_to_talk = "NOKEY"\n')),
        "keys.path",
        "broken",
        r"Edit .*\[hotkeys\] push_to_talk",
    ),
    (
        "no input devices",
        both(down, lambda bed: bed.outside.nodes.pop("/dev/input/event3")),
        "keys.path",
        "broken",
        "utter ptt press",
    ),
    (
        "a keyboard without the key",
        both(down, lambda bed: keyboard(bed.outside, "event3", "AT", 1 << 30)),
        "keys.path",
        "broken",
        r"\[hotkeys\] push_to_talk",
    ),
    (
        "not in the group",
        both(
            down,
            lambda bed: bed.outside.unreadable.add("/dev/input/event3"),
            attribute("session_groups", frozenset({UID})),
            attribute("login_groups", frozenset({UID})),
        ),
        "keys.path",
        "broken",
        "^sudo usermod -aG input ada$",
    ),
    (
        "in the group, and not in this session",
        both(
            down,
            lambda bed: bed.outside.unreadable.add("/dev/input/event3"),
            attribute("session_groups", frozenset({UID})),
        ),
        "keys.path",
        "broken",
        "^loginctl terminate-user ada$",
    ),
    (
        "in the group, and yet closed",
        both(down, lambda bed: bed.outside.unreadable.add("/dev/input/event3")),
        "keys.path",
        "broken",
        "^getfacl /dev/input/event3$",
    ),
    (
        "a node that says no group",
        both(
            down,
            lambda bed: bed.outside.unreadable.add("/dev/input/event3"),
            node("/dev/input/event3", Seen(stat.S_IFCHR | 0o600, 0, 0)),
        ),
        "keys.path",
        "broken",
        "^sudo usermod -aG input ada$",
    ),
    (
        "the runner lacks the group",
        groups_of_runner(manager=False),
        "keys.path",
        "broken",
        "^systemctl --user restart utter-runner$",
    ),
    (
        "the user manager lacks the group",
        groups_of_runner(manager=True),
        "keys.path",
        "broken",
        "^loginctl terminate-user ada$",
    ),
    (
        "the runner does not watch it",
        contact(up(plugin("hello"), **NO_KEYS)),
        "keys.path",
        "broken",
        "^systemctl --user restart utter-runner$",
    ),
    # --- sound
    (
        "PipeWire is down",
        both(programs(pwdump=Ran(1, "", "can't connect")), node("{run}/pipewire-0", None)),
        "sound.server",
        "broken",
        "^systemctl --user restart pipewire$",
    ),
    (
        "PipeWire is down, without systemd",
        both(Bed.no_systemd, programs(pwdump=Ran(1, "", "x")), node("{run}/pipewire-0", None)),
        "sound.server",
        "broken",
        "^pipewire$",
    ),
    ("PipeWire hangs", programs(pwdump=Ran(None)), "sound.server", "broken", "^systemctl --user restart pipewire$"),
    ("pw-dump prints nonsense", programs(pwdump=Ran(0, "{}")), "sound.server", "broken", "restart pipewire"),
    ("no pw-dump", gone("pw-dump"), "sound.server", "warning", "^sudo apt install pipewire-bin$"),
    (
        "real PulseAudio",
        both(programs(pwdump=Ran(1)), lambda bed: bed.outside.running.append(Process(7, ("/usr/bin/pulseaudio",)))),
        "sound.server",
        "warning",
        "^sudo apt install pipewire$",
    ),
    (
        "no WirePlumber",
        lambda bed: bed.outside.running.pop(1),
        "sound.session",
        "broken",
        "^systemctl --user restart wireplumber$",
    ),
    ("zeros through the runner", UNHEARD, "sound.microphone", "broken", "^utter audio devices$"),
    (
        "muted",
        both(UNHEARD, programs(wpctl=Ran(0, "Volume: 0.40 [MUTED]\n"))),
        "sound.microphone",
        "broken",
        "^wpctl set-mute @DEFAULT_AUDIO_SOURCE@ 0$",
    ),
    (
        "volume 0",
        both(UNHEARD, programs(wpctl=Ran(0, "Volume: 0.00\n"))),
        "sound.microphone",
        "broken",
        "^wpctl set-volume @DEFAULT_AUDIO_SOURCE@ 100%$",
    ),
    ("no wpctl", both(UNHEARD, gone("wpctl get-volume")), "sound.microphone", "broken", "^utter audio devices$"),
    (
        "a runner that hears nothing",
        attribute("heard", Heard(problem="It is gone.")),
        "sound.microphone",
        "broken",
        "^utter audio test$",
    ),
    (
        "no microphone",
        both(down, programs(pwdump=Ran(0, pipewire()))),
        "sound.microphone",
        "broken",
        "^Plug a microphone in",
    ),
    (
        "a monitor instead",
        both(down, programs(pwdump=Ran(0, pipewire("mic", default="speaker")))),
        "sound.microphone",
        "broken",
        "^pw-metadata 0 default",
    ),
    (
        "a microphone that is not plugged in",
        both(down, config(CONFIG + '[audio]\nsource = "pw-record"\ndevice = "usb"\n')),
        "sound.microphone",
        "broken",
        r"\[audio\] device",
    ),
    (
        "zeros without the runner",
        both(down, attribute("sound", (bytes(64), ""))),
        "sound.microphone",
        "broken",
        "^utter audio devices$",
    ),
    (
        "nothing without the runner",
        both(down, attribute("sound", (b"", "no target"))),
        "sound.microphone",
        "broken",
        "restart wireplumber$",
    ),
    ("no pw-record", both(down, gone("pw-record")), "sound.microphone", "warning", "^sudo apt install pipewire-bin$"),
    (
        "no microphone wanted",
        config(CONFIG + '[audio]\nsource = "none"\n'),
        "sound.microphone",
        "warning",
        r"\[audio\] source",
    ),
    (
        "a file for a microphone",
        config(CONFIG + '[audio]\nsource = "wav"\nwav_path = "/x.wav"\n'),
        "sound.microphone",
        "warning",
        r"\[audio\] source",
    ),
    # --- plugins
    ("no plugins", config(""), "plugins.configured", "warning", r"\[\[plugin\]\]"),
    (
        "a plugin that cannot be run",
        contact(up(warnings=["Plugin hello: it has no entrypoint."])),
        "plugins.configured",
        "broken",
        'id = "hello"',
    ),
    (
        "the same with a place",
        trial("Plugin hello: /c/r.toml:3: rate: it is wrong"),
        "plugins.configured",
        "broken",
        "^Edit /c/r.toml:3$",
    ),
    ("a plugin that was added since", contact(up()), "plugins.configured", "warning", "^utter reload$"),
    (
        "failed",
        contact(up(plugin("hello", status="failed", detail="It ended 5 times."))),
        "plugins.running",
        "broken",
        "^utter plugins restart hello$",
    ),
    (
        "stopped",
        contact(up(plugin("hello", status="stopped"))),
        "plugins.running",
        "warning",
        "^utter plugins start hello$",
    ),
    (
        "degraded",
        contact(up(plugin("hello", status="degraded"))),
        "plugins.running",
        "warning",
        "^utter plugins validate hello$",
    ),
    (
        "waiting",
        contact(up(plugin("hello", status="waiting"))),
        "plugins.running",
        "warning",
        "^utter plugins validate hello$",
    ),
    ("restarted", contact(up(plugin("hello", restarts=3))), "plugins.running", "warning", "^utter logs hello$"),
    (
        "another protocol",
        contact(
            up(
                plugin("hello", status="failed", negotiated=None),
                validations={"hello": {"error": {"code": -32004, "message": "2.0"}}},
            )
        ),
        "plugins.versions",
        "broken",
        "^utter plugins update hello$",
    ),
    (
        "an old protocol",
        contact(up(plugin("hello", negotiated={"protocol": "0.9", "abi": 1}))),
        "plugins.versions",
        "warning",
        "^utter plugins update hello$",
    ),
    (
        "unknown capabilities",
        contact(up(plugin("hello"), validations={"hello": {"unknown_capabilities": ["odd.thing@1"]}})),
        "plugins.capabilities",
        "warning",
        "^utter plugins update hello$",
    ),
    (
        "deprecated capabilities",
        contact(
            up(
                plugin("hello"),
                validations={
                    "hello": {
                        "deprecations": [
                            {"capability": "a.b@1", "since": "1.0", "replacement": "a.b@2", "removed": "1.3"}
                        ]
                    }
                },
            )
        ),
        "plugins.capabilities",
        "warning",
        r"^Edit the manifest of hello: declare a\.b@2 in its place$",
    ),
    (
        "missing requires that ship",
        contact(up(plugin("hello", missing_requires=["stt.transcribe@1"]))),
        "plugins.requires",
        "broken",
        r'add \[\[plugin\]\] id = "',
    ),
    (
        "missing requires of nobody",
        contact(up(plugin("hello", missing_requires=["odd.thing@1"]))),
        "plugins.requires",
        "broken",
        "utter plugins install PACKAGE$",
    ),
    (
        "advisory where it should be enforced",
        both(
            config(ENFORCE),
            contact(
                up(
                    plugin(
                        "hello",
                        sandbox={
                            "permissions": [{"name": "network", "enforced": False, "advisory": True}],
                            "reasons": {"network": "it got through"},
                        },
                    )
                )
            ),
        ),
        "plugins.permissions",
        "warning",
        "^utter plugins validate hello$",
    ),
    # --- records
    (
        "a lockfile that is none",
        write_lockfile("version = 1\nodd = 2\n"),
        "records.lockfile",
        "broken",
        r"^Edit .*install\.lock:2$",
    ),
    (
        "a changed plugin",
        contact(
            up(
                plugin("hello"),
                drift=[
                    {
                        "plugin": "hello",
                        "field": "digest",
                        "recorded": "a",
                        "found": "b",
                        "detail": "hello has changed.",
                    }
                ],
            )
        ),
        "records.lockfile",
        "warning",
        "^utter plugins lock hello$",
    ),
    (
        "no audit trail",
        contact(up(plugin("hello"), audit={"path": "/a", "detail": "It is full."})),
        "records.audit",
        "broken",
        "^ls -ld /a$",
    ),
    (
        "lost lines",
        contact(up(plugin("hello"), audit={"path": "/a", "lost": 3})),
        "records.audit",
        "warning",
        "^df -h /a$",
    ),
    ("no place for the audit trail", audit_closed, "records.audit", "broken", "^chmod u\\+w .*/home$"),
    # --- service
    ("no unit", lambda bed: bed.unit(LoadState="not-found"), "service.unit", "warning", "^utter service install$"),
    (
        "a failed unit",
        lambda bed: bed.unit(ActiveState="failed", Result="watchdog"),
        "service.unit",
        "broken",
        "^systemctl --user restart utter-runner$",
    ),
    (
        "an outdated unit",
        lambda bed: bed.unit(ExecStart="{ path=/gone/utter-runner ; }"),
        "service.unit",
        "broken",
        "^utter service install$",
    ),
    (
        "a unit that was changed",
        lambda bed: bed.unit(NeedDaemonReload="yes"),
        "service.unit",
        "warning",
        "^systemctl --user daemon-reload$",
    ),
    (
        "a disabled unit",
        lambda bed: bed.unit(UnitFileState="disabled"),
        "service.unit",
        "warning",
        "^systemctl --user enable utter-runner$",
    ),
    (
        "a masked unit",
        lambda bed: bed.unit(UnitFileState="masked"),
        "service.unit",
        "warning",
        "^systemctl --user unmask utter-runner$",
    ),
    (
        "by hand beside the unit",
        both(listener(), lambda bed: bed.unit(ActiveState="inactive")),
        "service.unit",
        "warning",
        "^kill 4711 && systemctl --user start utter-runner$",
    ),
    ("linger", programs(loginctl=Ran(0, "yes\n")), "service.linger", "warning", "^loginctl disable-linger ada$"),
    (
        "variables that the manager lacks",
        programs(manager=Ran(0, "DISPLAY=:0\n")),
        "service.environment",
        "warning",
        "^systemctl --user import-environment WAYLAND_DISPLAY",
    ),
    (
        "a runner of another session",
        lambda bed: bed.environment(WAYLAND_DISPLAY="wayland-9"),
        "service.runner",
        "warning",
        "^systemctl --user restart utter-runner$",
    ),
    (
        "no bus",
        lambda bed: bed.environment(DBUS_SESSION_BUS_ADDRESS=None),
        "service.bus",
        "warning",
        "^dbus-run-session utter-runner$",
    ),
    # --- sockets
    (
        "XDG_RUNTIME_DIR is relative",
        lambda bed: bed.environment(XDG_RUNTIME_DIR="run"),
        "sockets.runtime",
        "broken",
        "^export XDG_RUNTIME_DIR=/run/user/1000$",
    ),
    (
        "an open runtime directory",
        node("{run}", Seen(DIRECTORY | 0o755, UID, UID)),
        "sockets.runtime",
        "broken",
        "^chmod 700 .*/run$",
    ),
    (
        "no runtime directory there",
        node("{run}", FileNotFoundError(errno.ENOENT, "no")),
        "sockets.runtime",
        "broken",
        "^mkdir -m 700 ",
    ),
    (
        "a runtime directory that cannot be seen",
        node("{run}", PermissionError(errno.EACCES, "Permission denied")),
        "sockets.runtime",
        "broken",
        "^ls -ld ",
    ),
    (
        "a file for a directory",
        node("{run}/utter", Seen(stat.S_IFREG | 0o600, UID, UID)),
        "sockets.directory",
        "broken",
        "^mv ",
    ),
    (
        "somebody else's directory",
        node("{run}/utter", Seen(DIRECTORY | 0o700, 5, 5)),
        "sockets.directory",
        "broken",
        "^sudo chown 1000 ",
    ),
    (
        "a directory that others may write",
        node("{run}/utter", Seen(DIRECTORY | 0o777, UID, UID)),
        "sockets.directory",
        "broken",
        "^chmod 700 .*/utter$",
    ),
    (
        "a socket that is open",
        node("{run}/utter/runner.sock", Seen(stat.S_IFSOCK | 0o666, UID, UID)),
        "sockets.file",
        "warning",
        "^chmod 600 ",
    ),
    (
        "a long path",
        lambda bed: setattr(bed, "options", Options(socket="/" + "x" * 108)),
        "sockets.file",
        "broken",
        "socket_path",
    ),
    (
        "a plugin's socket that is left",
        node("{run}/utter/plugins/old.sock", LEFT),
        "sockets.plugins",
        "warning",
        "^rm .*/utter/plugins/old.sock$",
    ),
    # --- software
    (
        "no sounddevice",
        attribute("modules", {"sounddevice"}),
        "software.packages",
        "broken",
        r"^pip install 'utter-runner\[audio\]'$",
    ),
    (
        "no jeepney",
        both(config(CONFIG + '[plugin.secret_env]\nKEY = "secret:service=x"\n'), attribute("modules", {"jeepney"})),
        "software.packages",
        "broken",
        r"\[desktop\]",
    ),
    (
        "no wasmtime",
        both(
            config('[[plugin]]\nid = "hello"\nruntime = "wasm"\nentrypoint = ["/x.wasm"]\n'),
            attribute("modules", {"wasmtime"}),
        ),
        "software.packages",
        "broken",
        r"\[wasm\]",
    ),
    (
        "no whisper",
        both(config('[[plugin]]\nid = "whisper"\n'), attribute("modules", {"faster_whisper"})),
        "software.packages",
        "broken",
        r"\[whisper\]",
    ),
    (
        "no sandbox at all",
        both(config(ENFORCE), gone("bwrap"), attribute("landlock_abi", 0)),
        "software.sandbox",
        "broken",
        "^sudo apt install bubblewrap$",
    ),
    (
        "no bubblewrap",
        both(config(ENFORCE), gone("bwrap")),
        "software.sandbox",
        "warning",
        "^sudo apt install bubblewrap$",
    ),
    ("no Landlock", both(config(ENFORCE), attribute("landlock_abi", 0)), "software.sandbox", "warning", "lsm=landlock"),
    (
        "no user namespaces",
        both(
            config(ENFORCE), lambda bed: bed.outside.files.update({"/proc/sys/kernel/unprivileged_userns_clone": "0\n"})
        ),
        "software.sandbox",
        "broken",
        "^sudo sysctl kernel.unprivileged_userns_clone=1$",
    ),
    (
        "no scopes",
        both(config(ENFORCE + 'sandbox = ["systemd-run", "bubblewrap"]\n'), Bed.no_systemd),
        "software.sandbox",
        "broken",
        "without systemd-run",
    ),
    # --- limits
    (
        "no room",
        lambda bed: bed.outside.spaces.update({str(bed.runtime): Space(2**20, 500)}),
        "limits.disk",
        "broken",
        "^df -h -i ",
    ),
    (
        "little room",
        lambda bed: bed.outside.spaces.update({str(bed.runtime): Space(100 * 2**20, 500)}),
        "limits.disk",
        "warning",
        "^df -h ",
    ),
    (
        "few inodes",
        lambda bed: bed.outside.spaces.update({str(bed.runtime): Space(2**40, 3)}),
        "limits.disk",
        "broken",
        "^df -h -i ",
    ),
    ("few descriptors", attribute("descriptors", 256), "limits.descriptors", "warning", "^ulimit -n 1024$"),
    (
        "few inotify instances",
        lambda bed: bed.outside.files.update({"/proc/sys/fs/inotify/max_user_instances": "8\n"}),
        "limits.inotify",
        "warning",
        "^sudo sysctl fs.inotify.max_user_instances=512$",
    ),
    ("no real time", attribute("priority", 0), "limits.realtime", "warning", "^sudo apt install rtkit$"),
    (
        "an old kernel",
        lambda bed: bed.outside.files.update({"/proc/sys/kernel/osrelease": "4.19.0\n"}),
        "limits.versions",
        "broken",
        "kernel",
    ),
]


@pytest.mark.parametrize(("what", "spoil", "check", "status", "mend"), CASES, ids=[case[0] for case in CASES])
def test_what_is_wrong_is_found_with_what_mends_it(
    bed: Bed, what: str, spoil: Spoil, check: str, status: str, mend: str
) -> None:
    spoil(bed)
    report = bed.examine()
    matching = [
        finding for finding in found(report, check) if finding.status == status and re.search(mend, finding.mend)
    ]
    assert matching, f"{what}: {found(report, check)}"
    assert all(finding.what and finding.why for finding in matching)
    assert "\n" not in matching[0].mend
    assert (report.ok, report.exit >= (2 if status == "broken" else 1)) == (False, True)
    # Whatever is wrong, no check fails itself.
    assert not [
        finding
        for finding in report.findings
        if "itself has failed" in finding.what and finding.check != "config.start"
    ]


FINE: list[tuple[str, Spoil, str, str]] = [
    ("hotkeys are off", config(CONFIG + "[hotkeys]\nenabled = false\n"), "keys.path", "utter ptt press"),
    ("the key without the runner", down, "keys.path", r"evdev.*AT Keyboard"),
    (
        "a device that sysfs does not know",
        both(down, lambda bed: bed.outside.files.pop("/sys/class/input/event3/device/name")),
        "keys.path",
        "event3",
    ),
    ("no portal", gone("dbus-send"), "keys.portal", "no portal"),
    (
        "a file needs no server",
        config(CONFIG + '[audio]\nsource = "wav"\nwav_path = "/x.wav"\n'),
        "sound.server",
        "wav",
    ),
    ("the microphone without the runner", both(down, attribute("heard", Heard())), "sound.microphone", "mic"),
    (
        "a microphone by its name",
        both(down, config(CONFIG + '[audio]\nsource = "pw-record"\ndevice = "mic"\n')),
        "sound.microphone",
        "heard",
    ),
    (
        "not to be listened to",
        lambda bed: setattr(bed, "options", Options(microphone=False)),
        "sound.microphone",
        "not listened to",
    ),
    (
        "enforced",
        both(
            config(ENFORCE),
            contact(
                up(plugin("hello", sandbox={"permissions": [{"name": "network", "enforced": True, "advisory": False}]}))
            ),
        ),
        "plugins.permissions",
        "enforced",
    ),
    ("a sandbox", config(ENFORCE), "software.sandbox", "bubblewrap, Landlock 4"),
    ("no audit wanted", config(CONFIG + '[log]\naudit = "off"\n'), "records.audit", "off"),
    ("no systemd", Bed.no_systemd, "service.unit", "by hand"),
    (
        "a bus at the usual place",
        both(lambda bed: bed.environment(DBUS_SESSION_BUS_ADDRESS=None), node("{run}/bus", LEFT)),
        "service.bus",
        "session bus",
    ),
    ("no directory yet", both(down, node("{run}/utter", None)), "sockets.directory", "will be made"),
    ("a secret that is there", config(CONFIG + '[plugin.secret_env]\nKEY = "env:PATH"\n'), "config.secrets", "1"),
]


@pytest.mark.parametrize(("what", "make", "check", "said"), FINE, ids=[case[0] for case in FINE])
def test_what_is_in_order_is_said_so(bed: Bed, what: str, make: Spoil, check: str, said: str) -> None:
    make(bed)
    (finding,) = found(bed.examine(), check)
    assert (finding.status, finding.why, finding.mend) == ("ok", "", ""), what
    assert re.search(said, finding.what)


def test_every_finding_of_every_check_has_been_provoked(bed: Bed, tmp_path: Path) -> None:
    """In place of a promise: each call that makes a finding is made by a case above, and each check in both states."""
    provoked.clear()
    states: dict[str, set[bool]] = {name: set() for name in CHECKS}
    for number, spoil in enumerate([lambda _bed: None, *(case[1] for case in [*CASES, *FINE])]):
        root = tmp_path / str(number)
        root.mkdir()
        one = Bed(root)
        spoil(one)
        for finding in one.examine().findings:
            states[finding.check].add(finding.status == "ok")
    missed = []
    for path in sorted(PACKAGE.glob("*.py")):
        if path.name in ("model.py", "registry.py"):
            continue
        for call in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Name)
                and call.func.id in ("ok", "warning", "broken")
            ):
                lines = range(call.lineno, (call.end_lineno or 0) + 1)
                if not any((path.name, line) in provoked for line in lines):
                    missed.append(f"{path.name}:{call.lineno}")
    assert missed == []
    # The portal is one way of several, and its absence is nothing to mend.
    assert {name for name, both_states in states.items() if len(both_states) < 2} <= {"keys.portal"}


def test_deprecations_and_unknown_names_are_told_without_the_runner(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = Deprecation(since="1.0", replacement="new.thing@1")
    entries = [
        Entry(name="old.thing", version=1, summary="", deprecated=ends),
        Entry(name="new.thing", version=1, summary=""),
    ]
    monkeypatch.setattr(plugins, "load_registry", lambda: Registry(entries))
    bed.down()
    bed.config = (
        CONFIG + 'provides = ["old.thing@1", "odd.thing@1"]\nrequires = ["new.thing@1"]\npermissions = ["network"]\n'
    )
    report = bed.examine()
    (told,) = report.plugins
    assert (told.id, told.epoch, told.status, told.negotiated) == ("hello", None, None, None)
    assert told.unknown_capabilities == ["odd.thing@1"]
    assert told.missing_requires == ["new.thing@1"]
    assert [(one.capability, one.replacement) for one in told.deprecations] == [("old.thing@1", "new.thing@1")]
    assert [(one.name, one.enforced, one.advisory) for one in told.permissions] == [("network", None, None)]
    assert {one.status for one in found(report, "plugins.capabilities")} == {"warning"}
    assert {one.status for one in found(report, "plugins.requires")} == {"broken"}


def test_the_configuration_that_the_runner_reads_is_looked_at(bed: Bed) -> None:
    elsewhere = bed.root / "other.toml"
    elsewhere.write_text("[audio]\nsauce = 1\n")
    for words in (("--config", str(elsewhere)), (f"--config={elsewhere}",)):
        bed.outside.running = [
            one._replace(argv=("/usr/bin/python3", "utter-runner", *words)) if one.pid == RUNNER_PID else one
            for one in bed.outside.running
        ]
        assert str(elsewhere) in found(bed.examine(), "config.file")[0].what


def test_a_keyboard_that_lacks_the_key_is_not_taken_for_one_that_has_it(bed: Bed) -> None:
    bed.down()
    path = keyboard(bed.outside, "event7", "Numbers", 1 << 79)
    bed.outside.nodes[path] = Seen(stat.S_IFCHR | 0o660, 0, INPUT)
    bed.outside.unreadable.add("/dev/input/event3")
    (finding,) = found(bed.examine(), "keys.path")
    assert "/dev/input/event3" in finding.what


def test_the_version_of_the_portal_is_read(bed: Bed) -> None:
    bed.outside.programs["dbus-send"] = Ran(0, "method return time=1\n   variant       uint32 2\n")
    assert "version 2" in found(bed.examine(), "keys.portal")[0].what
    bed.outside.programs["dbus-send"] = Ran(1, "", "Error org.freedesktop.DBus.Error.ServiceUnknown")
    assert "no portal" in found(bed.examine(), "keys.portal")[0].what
    assert keys.DIRECTORY == "/dev/input"


def test_the_report_has_the_fields_that_programs_rely_on(bed: Bed) -> None:
    bed.outside.contact = up(plugin("hello"), drift=[{"plugin": "hello", "field": "digest"}])
    shown: dict[str, Any] = msgspec.to_builtins(bed.examine())
    assert set(shown) == {"ok", "exit", "utter", "state", "socket", "runner", "plugins", "drift", "findings"}
    assert set(shown["runner"]) == {"protocol", "abi", "version"}
    assert set(shown["plugins"][0]) == {
        "id", "kind", "epoch", "status", "negotiated", "unknown_capabilities", "missing_requires", "permissions", "deprecations",
    }  # fmt: skip
    assert shown["plugins"][0]["negotiated"] == {"protocol": "1.0", "abi": 1}
    assert shown["drift"] == [{"plugin": "hello", "field": "digest"}]
    assert set(shown["findings"][0]) == {"check", "status", "what", "why", "mend"}
    bed.down()
    assert msgspec.to_builtins(bed.examine())["runner"] == {"protocol": None, "abi": None, "version": None}


def test_problems_come_first_and_decide(bed: Bed) -> None:
    bed.outside.priority = 0
    report = bed.examine()
    assert (report.exit, report.findings[0].status) == (1, "warning")
    bed.outside.contact = up(plugin("hello", status="failed"))
    report = bed.examine()
    assert (report.exit, report.findings[0].status, report.findings[1].status) == (2, "broken", "warning")


def test_the_output_of_plugins_and_secrets_stay_out(bed: Bed) -> None:
    bed.outside.contact = up(plugin("hello", status="failed", stderr_tail="heard: my secret words", detail="It ended."))
    bed.outside.environ = {**bed.outside.environ, "KEY_OF_MINE": "sesame\x1b[31m"}
    bed.config = CONFIG + '[plugin.secret_env]\nKEY = "env:KEY_OF_MINE"\n'
    report = bed.examine()
    assert found(report, "config.secrets")[0].status == "broken"
    shown = msgspec.json.encode(report)
    assert b"secret words" not in shown
    assert b"sesame" not in shown


def test_two_errors_in_a_configuration_are_both_told(bed: Bed) -> None:
    bed.config = "[audio]\nsauce = 1\n[voice]\nlanguage = 3\n"
    assert len(found(bed.examine(), "config.file")) == 2


def test_the_trial_is_by_this_python(bed: Bed) -> None:
    bed.down()
    bed.examine()
    ran = [argv for argv in bed.outside.ran if "utter_runner" in argv]
    assert ran == [[sys.executable, "-m", "utter_runner", "--config", os.fspath(bed.path), "--check"]]
