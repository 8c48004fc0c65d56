"""What the desktop plugin offers on the wire: its settings, its ops with their argument schemas, and their results.

Rules here: an op validates all of its arguments before it does anything; what it could not do is an answer with
`ok: false` and a sentence, not an error. With `dry_run` nothing is started and no service is contacted.
"""

from __future__ import annotations

import os
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec

from utter_protocol.kinds import MediaHeld, MediaResumed, MediaSession
from utter_sdk import ActionResult, Plugin

from . import mpris, volume
from .activation import activate
from .context import ANNOUNCEMENT, CAPABILITIES, DesktopContext
from .entries import find_entry, is_program
from .failure import Failure
from .holding import MediaHolds
from .launch import OPENER_WATCH_S, app_argv, start_detached
from .opener import DEFAULT_OPENER, EXIT_CODES, open_argv
from .players import PlayerWatch
from .windows import WindowWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .entries import Entry
    from .watch import Watch

VERSION = "0.1.0"
PROVIDES = [
    "action.invoke@1",
    "action.open_url@1",
    "action.ensure_url@1",
    "action.launch_app@1",
    "action.media@1",
    "action.volume@1",
    "media.hold@1",
    *CAPABILITIES,
]
PERMISSIONS = ["session.bus", "process.spawn", "network", "files.read", "files.write", "screen", "gpu", "microphone"]

_ArgsT = TypeVar("_ArgsT")
_Argv = list[Annotated[str, msgspec.Meta(min_length=1)]]


def _told(run: Callable[[Desktop, _ArgsT], ActionResult]) -> Callable[[Desktop, _ArgsT], ActionResult]:
    """A method whose `Failure` becomes an answer."""

    @wraps(run)
    def invoke(self: Desktop, args: _ArgsT) -> ActionResult:
        try:
            return run(self, args)
        except Failure as failure:
            return ActionResult(ok=False, detail=str(failure))

    return invoke


class Settings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`[plugin.settings]` of the runner's config.

    Attributes:
        dry_run: report what would be done, do nothing.
        opener: the argv that a URL is appended to.
        terminal: the argv prefix for applications that want a terminal; empty: xdg-terminal-exec, then `$TERMINAL -e`.
    """

    dry_run: bool = False
    opener: Annotated[_Argv, msgspec.Meta(min_length=1)] = msgspec.field(default_factory=lambda: list(DEFAULT_OPENER))
    terminal: _Argv = []


class UrlArgs(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `open_url` and `ensure_url`."""

    url: str


class AppArgs(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `launch_app`."""

    app: str


class MediaArgs(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `media`."""

    command: mpris.Command
    player: str | None = None


class VolumeArgs(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `volume`."""

    command: volume.Command
    percent: float | None = None


def _schema(properties: dict[str, Any], required: list[str], **more: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
        **more,
    }


URL_SCHEMA = _schema({"url": {"type": "string", "minLength": 1, "maxLength": 8192}}, ["url"])
APP_SCHEMA = _schema({"app": {"type": "string", "minLength": 1, "maxLength": 255}}, ["app"])
MEDIA_SCHEMA = _schema(
    {
        "command": {"enum": list(mpris.METHODS)},
        "player": {"type": "string", "minLength": 1, "maxLength": 255},
    },
    ["command"],
)
VOLUME_SCHEMA = _schema(
    {
        "command": {"enum": ["set", "up", "down", "mute", "unmute", "toggle_mute"]},
        "percent": {"type": "number", "minimum": 0, "maximum": volume.MAX_PERCENT},
    },
    ["command"],
    **{"if": {"properties": {"command": {"const": "set"}}}, "then": {"required": ["percent"]}},
)


class Desktop:
    """The ops. They read the environment at each call, because it is the desktop's, not the plugin's.

    Args:
        settings: the plugin's settings.
        env: the environment that programs are looked up in and started with.
        log: takes what is learnt after the answer was given.
    """

    def __init__(self, settings: Settings, env: Mapping[str, str], log: Callable[[str], object]) -> None:
        self.settings = settings
        self._log = log
        self._env = env
        self._holds = MediaHolds(env)
        self._media = mpris.MediaControl(self._holds)

    @_told
    def open_url(self, args: UrlArgs) -> ActionResult:
        """Hand a canonical URL to the opener."""
        argv = open_argv(args.url, self.settings.opener)
        if self.settings.dry_run:
            return _would(f"open {args.url}", argv)
        if not is_program(argv[0], self._env):
            raise Failure(f"{argv[0]} is missing, which opens addresses. Install xdg-utils.")

        def failed_late(status: int) -> None:
            # One that is the browser itself ends when it is closed, or by the signal that ends the session.
            if status > 0:
                # Which address it was is content, and does not belong into the log.
                self._log(f"{argv[0]} failed after the address was said to be open: {_why(argv[0], status)}")

        status = start_detached(
            argv, app=Path(argv[0]).name, env=self._env, watch_s=OPENER_WATCH_S, on_late_end=failed_late
        )
        if status:
            raise Failure(f"{argv[0]} could not open {args.url}: {_why(argv[0], status)}.")
        return ActionResult(ok=True, detail=f"Opened {args.url}")

    @_told
    def launch_app(self, args: AppArgs) -> ActionResult:
        """Start an application by its desktop file id."""
        entry = find_entry(args.app, self._env)
        if self.settings.dry_run:
            data = {"name": entry.name, "file": str(entry.path), "dbus": entry.dbus}
            return _would(f"start {entry.name}", app_argv(entry, self.settings.terminal, self._env), data)
        if entry.dbus:
            refused = activate(entry.app, self._env)
            if not refused:
                return ActionResult(ok=True, detail=f"Started {entry.name}", data={"dbus": True})
            if not entry.argv:
                raise Failure(f"{entry.name} could not be started over D-Bus: {refused}")
        self._start(entry)
        return ActionResult(ok=True, detail=f"Started {entry.name}", data={"dbus": False})

    def _start(self, entry: Entry) -> None:
        argv = app_argv(entry, self.settings.terminal, self._env)
        status = start_detached(argv, app=entry.app, env=self._env, cwd=entry.cwd)
        if status:
            raise Failure(
                f"{entry.name} stopped right after its start: {_status_text(status)}. "
                f"Run {argv[0]} in a terminal to see why."
            )

    @_told
    def media(self, args: MediaArgs) -> ActionResult:
        """Send a command to a media player."""
        what = {"toggle": "toggle playback of", "next": "skip forward in", "previous": "skip back in"}
        phrase = what.get(args.command, args.command)
        if self.settings.dry_run:
            call = f"{mpris.PLAYER_INTERFACE}.{mpris.METHODS[args.command]}"
            return _would(f"{phrase} {args.player or 'the media player'}", [], {"call": call, "player": args.player})
        player = self._media.run(args.command, args.player, self._env)
        return ActionResult(
            ok=True,
            detail=f"Sent {args.command} to {player.identity}",
            data={"player": player.short_name, "identity": player.identity},
        )

    def hold(self, params: MediaSession) -> MediaHeld:
        """Pause what plays, for a session."""
        return MediaHeld(held=[] if self.settings.dry_run else self._holds.hold(params.session))

    def release(self, params: MediaSession) -> MediaResumed:
        """Play on what was paused, if no session needs it quiet any more."""
        return MediaResumed(resumed=[] if self.settings.dry_run else self._holds.release(params.session))

    @_told
    def volume(self, args: VolumeArgs) -> ActionResult:
        """Change the volume of the default output."""
        argv = volume.volume_argv(args.command, args.percent)
        if self.settings.dry_run:
            amount = "" if args.percent is None else f" {args.percent:g} percent"
            return _would(f"change the volume: {args.command.replace('_', ' ')}{amount}", argv)
        now = volume.change_volume(argv, self._env)
        if now is None:
            return ActionResult(ok=True, detail="Changed the volume")
        percent, muted = now
        detail = f"The volume is {percent} percent{', muted' if muted else ''}"
        return ActionResult(ok=True, detail=detail, data={"percent": percent, "muted": muted})


def _would(what: str, argv: list[str], more: dict[str, Any] | None = None) -> ActionResult:
    return ActionResult(ok=True, detail=f"would {what}", data={"dry_run": True, "argv": argv, **(more or {})})


def _why(opener: str, status: int) -> str:
    known = EXIT_CODES if Path(opener).name == DEFAULT_OPENER[0] else {}
    return known.get(status, _status_text(status))


def _status_text(status: int) -> str:
    return f"it was killed by signal {-status}" if status < 0 else f"it ended with exit status {status}"


def build(env: Mapping[str, str] = os.environ) -> Plugin:
    """The plugin with all that it offers, ready to run."""
    plugin = Plugin(
        "desktop",
        version=VERSION,
        kind="bundle",
        provides=PROVIDES,
        permissions=PERMISSIONS,
        streams=[ANNOUNCEMENT],
    )
    desktop = Desktop(Settings(), env, plugin.log)

    def refresh() -> None:
        if not desktop.settings.dry_run:
            for watch in watches:
                watch.start()
            for watch in watches:
                watch.wait()

    context = DesktopContext(plugin, refresh)
    windows = WindowWatch(env, context.set, plugin.log)
    watches: list[Watch[Any]] = [PlayerWatch(env, lambda media: context.set("media", media), plugin.log)]
    if windows.wanted:
        watches.append(windows)

    @plugin.on_start
    def started(settings: Settings) -> None:
        desktop.settings = settings
        if not settings.dry_run:
            for watch in watches:
                watch.start()

    plugin.method("context.snapshot", blocking="context")(context.snapshot)
    plugin.stream("context.live")(context.live)

    # On the lane of the op `media`: what it drives and what is held concern the same players.
    plugin.method("media.hold", blocking="media")(desktop.hold)
    plugin.method("media.release", blocking="media")(desktop.release)

    # A lane for each kind of op: a browser that takes its time to open must not delay "pause".
    plugin.action(
        "open_url",
        side_effect="external",
        schema=URL_SCHEMA,
        description="Opens an http, https or mailto address in the program that the user chose for it.",
        blocking="launch",
    )(desktop.open_url)
    plugin.action(
        "ensure_url",
        side_effect="external",
        schema=URL_SCHEMA,
        description="Opens an address like open_url. A tab that already shows it is not found again, because browsers "
        "do not offer that to other programs.",
        blocking="launch",
    )(desktop.open_url)
    plugin.action(
        "launch_app",
        side_effect="local",
        schema=APP_SCHEMA,
        description="Starts an installed application, named by its desktop file id without .desktop.",
        blocking="launch",
    )(desktop.launch_app)
    plugin.action(
        "media",
        side_effect="local",
        schema=MEDIA_SCHEMA,
        description="Controls a media player over MPRIS: the named one, else the one that plays.",
        blocking="media",
    )(desktop.media)
    plugin.action(
        "volume",
        side_effect="local",
        schema=VOLUME_SCHEMA,
        description="Changes the volume of the default output, in percent (0 to 150); up and down go by 5 unless told "
        "otherwise.",
        blocking="volume",
    )(desktop.volume)
    return plugin
