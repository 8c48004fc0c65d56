"""`utter-runner`: the command line, and the first moments of the daemon.

Rules here: what can fail because of the user's set-up fails first, before any plugin is started; then the plugins'
processes are started, and only then is the rest of the daemon imported, so that both come up side by side. SIGTERM ends
it cleanly from the first line on, and SIGHUP is remembered until the daemon can reload its configuration.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import signal
import stat
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from utter_protocol.packages import user_directories
from utter_runner import __version__
from utter_runner.config import Config, ConfigError, default_config_path, load_config, place_in, with_token
from utter_runner.config.secret import find_secret, secret_file
from utter_runner.operate.log_handlers import log_handler
from utter_runner.operate.notify import take_manager
from utter_runner.rpc.endpoint import Endpoint, EndpointError, default_socket_path
from utter_runner.setup import Setup
from utter_runner.supervision.launch import Launched, SpawnError, abandon, launch
from utter_runner.supervision.resolve import ResolveError, resolve
from utter_runner.supervision.secrets import with_secrets
from utter_runner.supervision.settings import settings_problems

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from utter_runner.supervision.spec import PluginSpec

logger = logging.getLogger("utter_runner")

EXIT_OK, EXIT_FAILED, EXIT_USAGE = 0, 1, 2


def argument_parser() -> argparse.ArgumentParser:
    """What the command line may say."""
    parser = argparse.ArgumentParser(
        prog="utter-runner", description="Hold a key, speak, and the desktop acts: the daemon. See also: utter --help"
    )
    parser.add_argument("--config", type=Path, help="configuration file (default: $XDG_CONFIG_HOME/utter/runner.toml)")
    parser.add_argument("--check", action="store_true", help="check the configuration and exit")
    parser.add_argument("--log-level", choices=["debug", "info", "warning", "error"], help="override [log] level")
    parser.add_argument("--version", action="version", version=f"utter-runner {__version__}")
    return parser


def plugin_specs(
    config: Config, environ: Mapping[str, str], *, thorough: bool = False
) -> tuple[list[PluginSpec], list[str]]:
    """Return what to run, and a sentence for everything for which a plugin cannot be run.

    Args:
        config: the configuration.
        environ: names the directories of packages.
        thorough: whether schemas are looked at even where there is nothing that could break them.
    """
    specs: list[PluginSpec] = []
    problems: list[str] = []
    base = Path(config.path).absolute().parent
    secret_files: list[str] = []

    def find(reference: str) -> str:
        if file := secret_file(reference, base):
            secret_files.append(str(file))
        return find_secret(reference, environ, base)

    directories: list[str | Path] = [*config.runner.plugin_dirs, *user_directories(environ)]
    for position, entry in enumerate(config.plugin):
        if not entry.enabled:
            continue
        place = partial(_place, config, position)
        try:
            spec = resolve(entry, directories, environ=environ, runner_socket=config.runner.socket_path)
        except ResolveError as error:
            problems.append(f"{error} (configured in {place(())})")
            continue
        spec, missing = with_secrets(spec, find, place)
        if missing:
            problems += missing
        elif wrong := settings_problems(spec, place, thorough=thorough):
            problems += wrong
        else:
            specs.append(spec)
    if config.security.enforce:
        from utter_runner.supervision.sandbox.confine import confine  # noqa: PLC0415 - not loaded where nobody wants it

        specs, refused = confine(specs, config, environ, secret_files)
        problems += refused
    return specs, problems


def read_setup(path: Path, environ: Mapping[str, str], adapt: Callable[[Config], Config]) -> Setup:
    """Read the configuration for a daemon that runs already, as at its start. Blocks.

    Args:
        path: the file.
        environ: as for `plugin_specs`.
        adapt: puts back what cannot change any more.

    Raises:
        ConfigError: it cannot be used.
    """
    if _is_pipe(path):
        # As `--config <(COMMAND)` of a shell leaves it behind. Whoever opened it would wait for a writer.
        raise ConfigError([f"{path}: The configuration is a pipe, which can be read only once. Restart the runner."])
    config = adapt(with_token(load_config(path), environ))
    return Setup(config, *plugin_specs(config, environ))


def _is_pipe(path: Path) -> bool:
    try:
        return stat.S_ISFIFO(path.stat().st_mode)
    except OSError:
        # Reading it says what is wrong.
        return False


def _place(config: Config, position: int, key: Sequence[str | int]) -> str:
    return place_in(config, ("plugin", position, *key))


def _launch_all(specs: Sequence[PluginSpec], launched: dict[str, Launched]) -> None:
    """Start the first epoch of each plugin; one that cannot be started is left to the supervisor, which says why.

    One that inherits the audio ring starts when there is a ring; with `[runner] locked`, all start after the check.
    """
    for spec in specs:
        if spec.spawn and not spec.inherits_ring:
            with suppress(SpawnError):
                launched[spec.id] = launch(spec, 1, os.environ)


def _check(config: Config, path: Path, plugins: int, problems: list[str]) -> int:
    """Answer --check: everything that would be refused or warned of at the start."""
    from utter_runner.voice.build import VoiceError, hotkey_bindings  # noqa: PLC0415 - only this needs it so early

    if config.hotkeys.enabled:
        try:
            hotkey_bindings(config.hotkeys)
        except VoiceError as error:
            problems = [*problems, str(error)]
    for problem in problems:
        print(problem, file=sys.stderr)  # noqa: T201 - the answer to --check
    print(f"{path}: plugins that can be run: {plugins}; problems: {len(problems)}")  # noqa: T201 - as above
    return EXIT_FAILED if problems else EXIT_OK


def _quit(number: int, _frame: Any) -> None:
    raise SystemExit(EXIT_OK if number == signal.SIGTERM else 128 + number)


class _HangUp:
    """Takes note of SIGHUP until the loop runs, so that it neither ends the process nor is lost.

    A handler, since children would inherit that a signal is ignored.
    """

    def __init__(self) -> None:
        self.noted = False

    def __call__(self, _number: int, _frame: Any) -> None:
        self.noted = True


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the daemon; return its exit code: 0 stopped, 1 failed, 2 the configuration or the command line is wrong."""
    # What is imported stays; looking for garbage among it only costs time.
    gc.disable()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _quit)
    hang_up = _HangUp()
    signal.signal(signal.SIGHUP, hang_up)
    options = argument_parser().parse_args(arguments)
    manager = take_manager(os.environ, os.getpid())
    path = options.config or default_config_path(os.environ)
    try:
        config = with_token(load_config(path), os.environ)
    except ConfigError as error:
        print(error, file=sys.stderr)  # noqa: T201 - logging is configured by what could not be read
        manager.status(str(error))
        return EXIT_USAGE
    level = options.log_level or config.log.level
    logging.basicConfig(level=level.upper(), handlers=[log_handler(os.environ)])
    specs, problems = plugin_specs(config, os.environ, thorough=options.check)
    if options.check:
        return _check(config, path, len(specs), [*problems, *config.warnings])
    try:
        socket_path = Path(config.runner.socket_path) if config.runner.socket_path else default_socket_path(os.environ)
        endpoint = _endpoint(socket_path)
    except EndpointError as error:
        logger.error("%s", error)  # noqa: TRY400 - the message says all there is
        manager.status(str(error))
        return EXIT_FAILED
    try:
        return _run(
            Setup(config, specs, problems),
            endpoint,
            read=partial(read_setup, path, os.environ),
            level_is_given=options.log_level is not None,
            hung_up=lambda: hang_up.noted,
            manager=manager,
        )
    finally:
        endpoint.close()


def _endpoint(path: Path) -> Endpoint:
    """Return where clients connect: what the service manager passed, or a socket of our own. Raises EndpointError."""
    if "LISTEN_PID" not in os.environ:
        return Endpoint(path)
    from utter_runner.rpc.activation import check_place, take_listener  # noqa: PLC0415 - only where a socket is passed

    passed = take_listener(os.environ, os.getpid())
    if passed is None:
        return Endpoint(path)
    try:
        check_place(passed, path)
        return Endpoint(path, passed=passed)
    except EndpointError:
        passed.close()
        raise


def _run(setup: Setup, endpoint: Endpoint, **options: Any) -> int:
    launched: dict[str, Launched] = {}
    try:
        if not setup.config.runner.locked:
            _launch_all(setup.specs, launched)
        from utter_runner import daemon  # noqa: PLC0415 - the plugins start while this loads

        gc.freeze()
        gc.enable()
        return daemon.serve(setup, endpoint, launched, **options)
    finally:
        for one in launched.values():
            abandon(one)
            if one.endpoint is not None:
                one.endpoint.close()
