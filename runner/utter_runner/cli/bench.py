"""`utter bench`: a few figures of this machine, each beside what the machine can do at best.

Rules here: nothing is done on the desktop; a figure stands beside its floor, measured in the same run and in turns with
it, because figures of different machines and moments cannot be compared; words say what is slow, and what to do.
"""

from __future__ import annotations

import base64
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import wave
from contextlib import ExitStack, closing, suppress
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from utter_protocol.errors import RpcError
from utter_runner.cli.connection import CALL_TIMEOUT_S, Target, UsageError
from utter_sdk.client import Client, RunnerUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 300
STARTS = 3
RECOGNITIONS = 3
LISTEN_S = 60.0
START_S = 60.0
MAX_PLUGINS = 8
RECORDING = "sentence.wav"
_ECHO = """
import socket
with socket.socket(fileno=0) as peer:
    while data := peer.recv(65536):
        peer.sendall(data)
"""
_EMPTY = """
[audio]
source = "none"
cues = false
[hotkeys]
enabled = false
[policy]
notify = false
[socket]
allow_same_uid = true
[log]
audit = "off"
"""
# What a request and its answer are, about: frames of 100 bytes.
_PIECE = b"x" * 100
# From here on something is worth a word.
_SLOW_HOP_MS, _SLOW_PLUGIN_MS, _SLOW_START_RATIO, _SLOW_TEXT_MS = 5.0, 50.0, 60.0, 1500.0


class Figure(NamedTuple):
    """One thing that was measured.

    Attributes:
        name: what.
        ms: how long it takes, the median of all rounds.
        floor: what the floor is.
        floor_ms: how long that takes.
        advice: what to do if it is slow; empty if it is not.
    """

    name: str
    ms: float
    floor: str
    floor_ms: float
    advice: str = ""

    @property
    def ratio(self) -> float:
        """How many times the floor it is."""
        return self.ms / self.floor_ms if self.floor_ms else 0.0

    def described(self) -> dict[str, Any]:
        """As JSON has it."""
        figures = {"ms": round(self.ms, 3), "floor_ms": round(self.floor_ms, 3), "ratio": round(self.ratio, 2)}
        return {"name": self.name, **figures, "floor": self.floor, "advice": self.advice}


def measure(target: Target, file: str | None) -> tuple[list[Figure], list[str]]:
    """Measure; return the figures, and a sentence for everything that could not be measured.

    Raises:
        UsageError: the recording cannot be used.
    """
    recording = _recording(file)
    try:
        client = target.connect()
    except RunnerUnavailable as error:
        figures, skipped = _started()
        return figures, [f"The runner is not available: {error} So a bare one was started.", *skipped]
    with client:
        plugins = client.call("runner.plugins", {}, CALL_TIMEOUT_S)["plugins"]
        running = [one for one in plugins if one.get("status") == "ready"]
        figures = _hops(client, [one["id"] for one in running[:MAX_PLUGINS]])
        found, skipped = _recognition(client, recording, running)
        return [*figures, *found], skipped


def _recording(file: str | None) -> tuple[bytes, float]:
    """A recording, and how many milliseconds it lasts."""
    try:
        if file is None:
            data = resources.files("utter_runner.cli").joinpath("recordings", RECORDING).read_bytes()
        else:
            data = Path(file).read_bytes()
        with tempfile.SpooledTemporaryFile() as kept:
            kept.write(data)
            kept.seek(0)
            with wave.open(kept, "rb") as opened:
                return data, 1000 * opened.getnframes() / opened.getframerate()
    except (OSError, EOFError, wave.Error) as error:
        raise UsageError(f"{file} is no recording that can be used: {error}.") from None


def _hops(client: Client, plugins: list[str]) -> list[Figure]:
    """Round trips to the runner, and through it to each plugin, in turns with a bare echo."""
    near, far = socket.socketpair()
    with ExitStack() as stack:
        stack.callback(near.close)
        with far:
            echo = subprocess.Popen([sys.executable, "-S", "-E", "-c", _ECHO], stdin=far.fileno())
        stack.callback(echo.wait)
        stack.callback(near.shutdown, socket.SHUT_RDWR)
        near.settimeout(CALL_TIMEOUT_S)

        def bare() -> None:
            near.sendall(_PIECE)
            left = len(_PIECE)
            while left:
                left -= len(near.recv(left)) or left

        works: dict[str, Callable[[], object]] = {
            "": bare,
            "runner": lambda: client.call("confirm.list", {}, CALL_TIMEOUT_S),
        }
        for plugin in plugins:
            params = {"plugin": plugin, "method": "plugin.health", "params": {}}
            works[plugin] = partial(client.call, "runner.invoke", params, CALL_TIMEOUT_S)
        times = _in_turns(works, ROUNDS)
    floor = times.pop("")
    figures = []
    for name, taken in times.items():
        advice = ""
        if name == "runner" and taken > _SLOW_HOP_MS:
            advice = (
                f"The machine is busy ({os.getloadavg()[0]:.1f} processes wait or run), or the runner is: utter logs"
            )
        elif name != "runner" and taken > _SLOW_PLUGIN_MS:
            advice = f"The plugin takes its time to say that it is well: utter logs {name}"
        title = "to the runner and back" if name == "runner" else f"to the plugin {name} and back"
        figures.append(Figure(title, taken, "a bare unix socket and back", floor, advice))
    return figures


def _in_turns(works: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """How long each takes, the median in milliseconds; what fails is left out."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name in list(times):
            begun = time.perf_counter()
            try:
                works[name]()
            except (RpcError, TimeoutError):
                del times[name]
                continue
            times[name].append((time.perf_counter() - begun) * 1000)
    return {name: statistics.median(taken) for name, taken in times.items() if taken}


def _recognition(
    client: Client, recording: tuple[bytes, float], running: list[dict[str, Any]]
) -> tuple[list[Figure], list[str]]:
    """How long the configured plugin takes to understand a recording that it gets at once."""
    plugin = next((one["id"] for one in running if "stt.transcribe@1" in one.get("provides", ())), None)
    if plugin is None:
        return [], ["Recognition: no plugin that runs provides stt.transcribe@1."]
    data, length = recording
    params = {"wav_b64": base64.b64encode(data).decode(), "act": False, "timeout_ms": round(LISTEN_S * 1000)}
    times: list[float] = []
    for _ in range(RECOGNITIONS):
        report = client.call("runner.listen", params, LISTEN_S + CALL_TIMEOUT_S)
        taken = report.get("latency_ms", {}).get("stt")
        if taken is None:
            return [], [f"Recognition: {report.get('detail') or report.get('outcome')}"]
        times.append(float(taken))
    taken = statistics.median(times)
    advice = ""
    if taken > length:
        advice = (
            "It takes longer to understand than to speak: take a smaller model, "
            f"with utter config set plugin.{plugin}.settings.model NAME"
        )
    elif taken > _SLOW_TEXT_MS:
        advice = "With partials on it transcribes while you pause, and answers sooner; a smaller model is faster, too."
    return [
        Figure(f"from the release to the text ({plugin})", taken, "the length of what was said", length, advice)
    ], []


def _started() -> tuple[list[Figure], list[str]]:
    """Start a runner without plugins, a microphone or keys, in turns with a bare interpreter."""
    with tempfile.TemporaryDirectory(prefix="utter-bench-") as name:
        directory = Path(name)
        config = directory / "runner.toml"
        config.write_text(_EMPTY)
        env = {
            **os.environ,
            "XDG_RUNTIME_DIR": name,
            "XDG_STATE_HOME": name,
            "XDG_CONFIG_HOME": name,
            "XDG_DATA_HOME": name,
        }
        for variable in ("NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "WATCHDOG_USEC", "WATCHDOG_PID"):
            env.pop(variable, None)
        path = directory / "utter" / "runner.sock"
        figures: list[Figure] = []

        def bare() -> None:
            subprocess.run([sys.executable, "-P", "-c", "pass"], env=env, check=True)

        def start() -> None:
            command = [sys.executable, "-P", "-m", "utter_runner", "--config", str(config), "--log-level", "error"]
            said = directory / "said"
            with said.open("wb") as log:
                process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stderr=log)
            try:
                client = _connected(path, process, said)
                taken.append((time.perf_counter() - begun[0]) * 1000)
                with closing(client):
                    if not figures:
                        figures.extend(_hops(client, []))
            finally:
                process.terminate()
                process.wait()

        taken: list[float] = []
        floor: list[float] = []
        begun = [0.0]
        for _ in range(STARTS):
            begun[0] = time.perf_counter()
            bare()
            floor.append((time.perf_counter() - begun[0]) * 1000)
            begun[0] = time.perf_counter()
            start()
        made = Figure("from start to socket", statistics.median(taken), "a bare Python", statistics.median(floor))
        if made.ratio > _SLOW_START_RATIO:
            made = made._replace(advice="The disk is slow, or the package is not compiled: python -m compileall")
        return [made, *figures], ["Recognition and plugins: start the runner, then measure again."]


def _connected(path: Path, process: subprocess.Popen[bytes], said: Path) -> Client:
    """The client of a runner that is starting. Raises RunnerUnavailable."""
    end = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < end:
        with suppress(RunnerUnavailable):
            return Client.connect(str(path))
        time.sleep(0.002)
    last = said.read_text(errors="replace").strip().rpartition("\n")[2]
    raise RunnerUnavailable("", f"A bare runner could not be started: {last or 'it did not come up in time'}")
