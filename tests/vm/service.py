"""The runner in the guest, as its user has it: a unit of the user manager, a configuration, the `utter` command.

Rules here: what a test asks, it asks by the means of that user: systemctl, journalctl, `utter`. Nothing is imported of
the runner.
"""

from __future__ import annotations

import json
import shutil
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import soxr

from vm.bed.guest import Done, Guest
from vm.bed.layer import VENV

UNIT = "utter-runner.service"
SOCKET = "/run/user/1000/utter/runner.sock"
AUDIO = Path(__file__).parents[1] / "data" / "audio" / "en"
HERE = Path(__file__).parent
KEYBOARD = "bed keyboard"
KEY = "KEY_F9"
_CALL = """
import json, sys
from utter_sdk.client import Client
with Client.connect(sys.argv[1]) as client:
    print(json.dumps(client.call(sys.argv[2], json.loads(sys.argv[3]), timeout=200)))
"""
# Whoever waits looks often; `utter status` takes seconds of the emulated processor for each look.
_LOOK = """
import socket, sys
body = b'{"jsonrpc":"2.0","id":1,"method":"runner.status","params":{}}'
with socket.socket(socket.AF_UNIX) as runner, runner.makefile("rb") as answers:
    runner.settimeout(100)
    runner.connect(sys.argv[1])
    runner.sendall(b"Content-Length: %d\\r\\n\\r\\n" % len(body) + body)
    size = int(answers.readline().split()[1])
    answers.readline()
    sys.stdout.buffer.write(answers.read(size))
"""
# WirePlumber's side of the cable is the other one.
_CABLE = "hw:Loopback,1,0"
_CABLE_RATE = 48_000

# Emulated, everything takes longer than on a machine of flesh and blood.
SLOW = """
[runner]
handshake_timeout_ms = 60000
health_timeout_ms = 30000
[voice]
open_ms = 8000
stall_ms = 5000
zeros_ms = 30000
vad = "off"
pause_media = false
[hotkeys]
push_to_talk = "F9"
"""


# What turns speech into an action, without a model that takes minutes.
PIECES = """
[[plugin]]
id = "ear"
[[plugin]]
id = "commands"
pass_env = ["XDG_CONFIG_HOME", "XDG_DATA_HOME"]
[[plugin]]
id = "desktop"
pass_env = ["DBUS_SESSION_BUS_ADDRESS"]
"""


class Service:
    """The runner's unit in a guest."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest

    def configure(self, text: str) -> None:
        """Write the configuration."""
        self.guest.write(".config/utter/runner.toml", text)

    def put_plugin(self, name: str) -> None:
        """Put a plugin of these tests where a user's plugins lie."""
        shutil.copytree(HERE / name, self.guest.shared / name, dirs_exist_ok=True)
        place = "/home/alice/.local/share/utter/plugins"
        self.guest.run("mkdir", "-p", place).ok()
        self.guest.run("cp", "-r", f"/mnt/host/{name}", f"{place}/{name}").ok()

    def configure_more(self, plugins: str, extra: str = "") -> None:
        """Write the configuration with what an emulated machine needs."""
        self.configure(SLOW + extra + plugins)

    def call(self, method: str, params: dict[str, Any]) -> Any:
        """Call a method of the client API, for which `utter` has no command."""
        done = self.guest.run(f"{VENV}/bin/python", "-c", _CALL, SOCKET, method, json.dumps(params), timeout=300).ok()
        return json.loads(done.out)

    def invoke(self, plugin: str, method: str, params: dict[str, Any]) -> Any:
        """Call a method of a plugin."""
        return self.call("runner.invoke", {"plugin": plugin, "method": method, "params": params, "timeout_ms": 60_000})

    def install(self, plugins: str, extra: str = "") -> dict[str, Any]:
        """Set the runner up as its user would and start it; return its status once the plugins are ready."""
        self.configure_more(plugins, extra)
        # There is no graphical session that would start it.
        self.utter("service", "install", "--target", "default.target", timeout=300).ok()
        return self.ready(*(line.split('"')[1] for line in plugins.splitlines() if line.startswith("id =")))

    def audit(self) -> list[dict[str, Any]]:
        """The lines of the audit trail."""
        text = self.guest.read("/home/alice/.local/state/utter/audit.jsonl") or ""
        return [line for line in map(json.loads, text.splitlines()) if "op" in line]

    def systemctl(self, *arguments: str, timeout: float = 300) -> Done:
        """Run `systemctl --user`."""
        return self.guest.run("systemctl", "--user", *arguments, timeout=timeout)

    def show(self, name: str, unit: str = UNIT) -> str:
        """A property of the unit."""
        return self.systemctl("show", unit, "-p", name, "--value").ok().out.strip()

    def restart(self) -> None:
        """Restart it and wait until it is ready."""
        self.systemctl("restart", UNIT).ok()
        self.ready()

    def ready(self, *plugins: str) -> dict[str, Any]:
        """Wait until the runner answers, and these plugins are ready; return its status."""

        def look() -> dict[str, Any] | None:
            status = self.status()
            if status is None or status["state"] != "ready":
                return None
            states = {one["id"]: one["status"] for one in status["plugins"]}
            return status if all(states.get(one) == "ready" for one in plugins) else None

        found: dict[str, Any] = self.guest.until(f"the runner and {plugins} are ready", look)
        return found

    def status(self) -> dict[str, Any] | None:
        """What the runner says of itself, or None if it cannot be reached."""
        done = self.guest.run("python3", "-I", "-S", "-c", _LOOK, SOCKET)
        if done.code != 0:
            return None
        found: dict[str, Any] = json.loads(done.out)["result"]
        return found

    def until(self, what: str, look: Callable[[dict[str, Any]], Any], limit: float = 180) -> Any:
        """Wait until `look` finds something true in the status, and return that."""

        def seen() -> Any:
            status = self.status()
            return status is not None and look(status)

        return self.guest.until(what, seen, limit)

    def utter(self, *arguments: str, timeout: float = 120) -> Done:
        """Run `utter`."""
        return self.guest.run("utter", *arguments, timeout=timeout)

    def main_pid(self) -> int:
        """The process of the unit, or 0."""
        return int(self.show("MainPID"))

    def processes(self) -> dict[int, str]:
        """The processes of the unit's control group and of scopes that plugins run in: pid and command line."""
        listed = self.guest.run("ps", "-u", "alice", "-o", "pid=,args=").ok().out
        found = {}
        for line in listed.splitlines():
            pid, _, command = line.strip().partition(" ")
            if "utter_plugins" in command or "utter-runner" in command or "utter/plugins" in command:
                found[int(pid)] = command
        return found

    def journal(self, *matches: str) -> list[dict[str, Any]]:
        """What the user's journal has of the unit, or of these matches, as `journalctl --user` shows it."""
        done = self.guest.run("journalctl", "--user", "-o", "json", "--no-pager", *(matches or ("-u", UNIT))).ok()
        return [json.loads(line) for line in done.out.splitlines()]

    def plug(self) -> None:
        """Plug the keyboard in, and wait until the runner watches it."""
        self.guest.ask("plug", name=KEYBOARD, keys=[KEY, "KEY_A", "KEY_ESC"])
        self.until("the keyboard is watched", lambda status: KEYBOARD in str(status["hotkeys"]["devices"]))

    def key(self, value: int) -> None:
        """The key to speak goes down (1) or up (0)."""
        self.guest.ask("key", name=KEYBOARD, key=KEY, value=value)

    def say(self, recording: str) -> None:
        """Play a recording of tests/data/audio/en into the virtual microphone, to its end."""
        shared = self.guest.shared / recording
        if not shared.exists():
            cable_wav(AUDIO / recording, shared)
        self.guest.run("aplay", "-q", "-D", _CABLE, f"/mnt/host/{recording}").ok()


def cable_wav(source: Path, target: Path) -> None:
    """A recording as the sound card's cable takes it: 48 kHz, two channels, with a little silence around it."""
    with wave.open(str(source)) as reader:
        samples = np.frombuffer(reader.readframes(reader.getnframes()), dtype="<i2").astype(np.float32)
        rate = reader.getframerate()
    spoken = soxr.resample(samples, rate, _CABLE_RATE)
    quiet = np.zeros(_CABLE_RATE // 2, dtype=np.float32)
    mono = np.concatenate([quiet, spoken, quiet]).clip(-32768, 32767).astype("<i2")
    with wave.open(str(target), "wb") as writer:
        writer.setnchannels(2)
        writer.setsampwidth(2)
        writer.setframerate(_CABLE_RATE)
        writer.writeframes(np.repeat(mono, 2).tobytes())
