"""What all checks look through: the configuration, the socket, and what is asked once for all of them.

Rules here: making a `Look` waits for nothing; what takes time is a `Once`, which the first check that wants it asks.
"""

from __future__ import annotations

import shlex
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from utter_runner.config import Config, ConfigError, default_config_path, load_config
from utter_runner.machine.pipewire import NodesUnknown, parse_nodes
from utter_runner.operate import lockfile
from utter_runner.operate.doctor.contact import Contact
from utter_runner.operate.doctor.outside import PATIENCE_S, Process, Ran
from utter_runner.operate.doctor.registry import DEADLINE_S, LONGEST_S, Once
from utter_runner.operate.drift import compare, unreadable
from utter_runner.operate.errors import OperateError
from utter_runner.operate.found import survey
from utter_runner.operate.places import Places
from utter_runner.operate.service import ServiceState, service_state
from utter_runner.operate.systemctl import Answer, properties
from utter_runner.operate.units import SERVICE
from utter_sdk.runner_socket import RunnerUnavailable, default_socket_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from utter_runner.machine.pipewire import Nodes
    from utter_runner.operate.doctor.outside import Outside
    from utter_runner.operate.lockfile import Entry

DEFAULT_SOURCE = "@DEFAULT_AUDIO_SOURCE@"
# As slow as an emulated machine, and some.
_MORE = 6.0
_TRIAL_S = 8.0
# A busy machine takes seconds to ask PipeWire, and a finding that it hangs has to be true.
_PIPEWIRE_S = 8.0


class Options(NamedTuple):
    """What the user said on the command line.

    Attributes:
        socket: the runner's socket; None is what the configuration says.
        config: the configuration; None is that of the runner which runs, else the usual one.
        token: for `runner.auth`.
        token_problem: why the user's token cannot be used.
        microphone: whether it may be listened to.
        thorough: whether files are read for their digests.
    """

    socket: str | None = None
    config: str | None = None
    token: str | None = None
    token_problem: str = ""
    microphone: bool = True
    thorough: bool = False


class Look:
    """See above.

    Attributes:
        outside: everything else.
        options: the command line.
        config: the configuration; an empty one if it has problems.
        config_path: where it is, or would be.
        config_problems: what is wrong with it, each with file and line.
        socket: the socket's path; empty if there is no place for it, and then `socket_problem` says why.
    """

    def __init__(self, outside: Outside, options: Options) -> None:
        self.outside = outside
        self.options = options
        self.processes = Once(outside.processes)
        self.config_path = options.config or self._configured_elsewhere() or str(default_config_path(outside.environ))
        self.config = Config()
        self.config_problems: tuple[str, ...] = ()
        try:
            self.config = load_config(self.config_path)
        except ConfigError as error:
            self.config_problems = error.problems
        self.socket_problem = ""
        try:
            self.socket = options.socket or self.config.runner.socket_path or default_socket_path(outside.environ)
        except RunnerUnavailable as error:
            self.socket, self.socket_problem = "", error.reason
        self.contact = Once(self._reach)
        self.trial = Once(self._try_config)
        self.service = Once(self._look_at_service)
        self.manager_environ = Once(self._show_environ)
        self.pipewire = Once(self._dump)
        self.volume = Once(self._get_volume)
        self.record = Once(self._read_record)
        self.drift = Once(self._compare)

    @property
    def status(self) -> dict[str, Any]:
        """What the runner says; empty if it does not."""
        return self.contact().status

    def runners(self) -> list[Process]:
        """The runners of this session."""
        runtime = self.outside.environ.get("XDG_RUNTIME_DIR", "")
        return [
            one
            for one in self.processes()
            if is_runner(one.argv) and one.environ.get("XDG_RUNTIME_DIR", runtime) == runtime
        ]

    def runner_process(self) -> Process | None:
        """The process of the runner that answers, or hangs."""
        contact = self.contact()
        pid = contact.status.get("pid", contact.pid)
        return next((one for one in self.processes() if one.pid == pid), None)

    def is_service(self) -> bool:
        """Whether the runner was started by systemd."""
        process = self.runner_process()
        return process is not None and process.cgroup.endswith(f"/{SERVICE}")

    def start_command(self) -> str:
        """What starts a runner on this machine."""
        return "systemctl --user start utter-runner" if self._can_be_served() else "utter-runner"

    def restart_command(self) -> str:
        """What starts the runner anew."""
        process = self.runner_process()
        if process is None or self.is_service():
            return "systemctl --user restart utter-runner" if self._can_be_served() else "utter-runner"
        return f"kill {process.pid} && utter-runner"

    def _can_be_served(self) -> bool:
        """Whether there is a unit that systemd can start."""
        state = self.service()
        return bool(state.unit) and not state.problem and state.enabled != "masked"

    def edit(self, what: str) -> str:
        """An edit of the configuration."""
        return f"Edit {self.config_path}: {what}"

    def more_time(self) -> str:
        """The command that looks again, and gives everything more time; at the most that there is, what else helps."""
        seconds = min(_MORE * DEADLINE_S * self.outside.pace, LONGEST_S)
        if seconds <= DEADLINE_S * self.outside.pace:
            return "Log in again, or restart the machine: what is looked at hangs"
        said = [("--config", self.options.config), ("--socket", self.options.socket)]
        given = [word for name, value in said if value is not None for word in (name, value)]
        return shlex.join(["utter", "doctor", "--timeout", f"{seconds:g}", *given])

    def _configured_elsewhere(self) -> str:
        """The configuration that the one runner of this session was told to read, if it says it in full."""
        with suppress(OSError):
            runners = self.runners()
            if len(runners) == 1:
                words = runners[0].argv
                for word, value in zip(words, [*words[1:], ""], strict=True):
                    path = value if word == "--config" else word.removeprefix("--config=") if "=" in word else ""
                    if path.startswith("/"):
                        return path
        return ""

    def _reach(self) -> Contact:
        if not self.socket:
            return Contact(state="unreachable", reason=self.socket_problem)
        return self.outside.reach(self.socket, self.options.token)

    def _try_config(self) -> list[str]:
        """What the daemon itself would say of the configuration before it starts: a line for each problem."""
        if self.config_problems:
            return []
        argv = [self.outside.interpreter, "-m", "utter_runner", "--config", self.config_path, "--check"]
        ran = self.outside.run(argv, timeout=_TRIAL_S)
        if ran.code is None:
            waited = _TRIAL_S * self.outside.pace
            return [f"utter-runner --check has not ended within {waited:g} s. Run: {self.more_time()}"]
        said = [line for line in ran.err.splitlines() if line.strip()]
        if any(line.startswith("Traceback") for line in said):
            return [f"utter-runner --check itself has failed: {said[-1]}"]
        return said

    def _ask_systemd(self, argv: Sequence[str]) -> Ran | None:
        try:
            ran = self.outside.run(argv)
        except OSError:
            return None
        return ran if ran.code == 0 else None

    def _look_at_service(self) -> ServiceState:
        """How the service is; its `problem` is set where that cannot be found out."""
        try:
            return service_state(self.outside.environ, self._systemctl, self.outside.interpreter)
        except OperateError as error:
            return ServiceState(problem=str(error))

    def _systemctl(self, *arguments: str) -> Answer:
        """See `Systemctl`."""
        try:
            ran = self.outside.run(["systemctl", "--user", *arguments])
        except OSError as error:
            raise OperateError(f"systemctl cannot be run: {error.strerror}.") from None
        if ran.code is None:
            return Answer(1, "", f"it did not answer within {PATIENCE_S * self.outside.pace:g} s")
        return Answer(ran.code, ran.out, ran.err.strip())

    def _show_environ(self) -> Mapping[str, str] | None:
        """What the user manager gives to what it starts; None where there is none."""
        ran = self._ask_systemd(["systemctl", "--user", "show-environment"])
        return properties(ran.out) if ran else None

    def _read_record(self) -> dict[str, Entry]:
        """What is recorded of plugins, by id. Raises OperateError if it cannot be read."""
        return lockfile.read(Places.of(self.outside.environ).lockfile)

    def _compare(self) -> list[dict[str, Any]]:
        """What lies on disk and is not what is recorded, as `runner.status` has it; as it, raises nothing."""
        environ = self.outside.environ
        try:
            record = self.record()
            found = compare(record, survey(self.config, environ, Places.of(environ), record))
        except OperateError as error:
            found = [unreadable(str(error))]
        return [msgspec.to_builtins(one) for one in found]

    def _dump(self) -> tuple[Nodes | None, str, str]:
        """What PipeWire has, why it cannot be asked, and what it printed."""
        if self.outside.which("pw-dump") is None:
            return None, "pw-dump, which lists PipeWire's devices, is not installed.", ""
        ran = self.outside.run(["pw-dump"], timeout=_PIPEWIRE_S)
        if ran.code is None:
            waited = _PIPEWIRE_S * self.outside.pace
            return None, f"PipeWire has not listed its devices within {waited:g} s; it hangs.", ""
        if ran.code:
            return None, f"PipeWire cannot be asked for its devices: {ran.said}.", ""
        try:
            return parse_nodes(ran.out.encode()), "", ran.out
        except NodesUnknown as error:
            return None, str(error), ""

    def _get_volume(self) -> str | None:
        """What wpctl prints of the default microphone; nothing without wpctl, None if it does not answer or fails."""
        try:
            ran = self.outside.run(["wpctl", "get-volume", DEFAULT_SOURCE], timeout=_PIPEWIRE_S)
        except OSError:
            return ""
        return ran.out if ran.code == 0 else None


def is_runner(argv: Sequence[str]) -> bool:
    """Whether a command line is that of a runner that serves."""
    if "--check" in argv or "--version" in argv:
        return False
    names = [Path(word).name for word in argv[:2]]
    return "utter-runner" in names or any(
        first == "-m" and second == "utter_runner" for first, second in pairwise(argv)
    )
