"""Everything that the doctor can find, as (what it is, how it comes about, the check, the status, the mend)."""

from __future__ import annotations

import errno
import stat

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
    model,
    node,
    programs,
    second_runner,
    trial,
    write_lockfile,
)
from utter_runner.operate.doctor.contact import Contact, Heard
from utter_runner.operate.doctor.fake import RUNNER_PID, UID, keyboard, pipewire, plugin, up
from utter_runner.operate.doctor.look import Options
from utter_runner.operate.doctor.outside import Process, Ran, Seen, Space

OPEN_FILE = "The token file /t is open to other users. Run: chmod 600 /t"
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
        lambda bed: setattr(bed, "options", Options(token_problem=OPEN_FILE)),
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
    # --- models
    ("a model that was not fetched", model(), "models.files", "broken", "^utter models pull hello$"),
    (
        "a part of a model",
        model(place="parts", content=b"all"),
        "models.files",
        "broken",
        "^utter models pull hello$",
    ),
    (
        "a model without its name",
        model(place="sha256", name=False),
        "models.files",
        "broken",
        "^utter models pull hello$",
    ),
    (
        "a model of another size",
        model(place="sha256", content=b"all"),
        "models.files",
        "broken",
        "^utter models pull --check hello$",
    ),
    (
        "a model of another digest",
        model(place="sha256", content=b"ALL OF THE MODEL", thorough=True),
        "models.files",
        "broken",
        "^utter models pull --check hello$",
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
    ("a model by its size", model(place="sha256", content=b"ALL OF THE MODEL"), "models.files", "1; .*sizes are right"),
    ("a model by its digest", model(place="sha256", thorough=True), "models.files", "1; .*digests are right"),
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
