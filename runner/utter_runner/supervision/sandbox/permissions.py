"""What a plugin's process may see and touch: permissions and paths, united into one value.

Rules here: a list of what is there, never of what is not: what no rule names does not exist for the plugin. The file
system is asked what exists, and nothing is opened or changed. No wrapper is known here. It runs again for each epoch,
because sockets and devices come and go.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from utter_protocol.manifest import PERMISSIONS
from utter_protocol.models import content_path, plugin_models

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from utter_runner.supervision.spec import PluginSpec

# Software that the system has for everybody. Where /bin and the like are links into /usr, wrappers keep them as links.
SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix", "/gnu/store", "/snap",
    "/var/lib/flatpak", "/var/cache/fontconfig",
)  # fmt: skip
# Of /etc what programs need to run, and nothing that is a secret.
_SYSTEM_FILES = (
    "alsa", "alternatives", "asound.conf", "ca-certificates", "ca-certificates.conf", "crypto-policies", "fonts",
    "gai.conf", "group", "gtk-3.0", "gtk-4.0", "host.conf", "hostname", "hosts", "ld.so.cache", "ld.so.conf",
    "ld.so.conf.d", "locale.alias", "locale.conf", "localtime", "machine-id", "mailcap", "mime.types", "nsswitch.conf",
    "os-release", "passwd", "pipewire", "pki", "protocols", "pulse", "resolv.conf", "services", "ssl", "timezone",
    "vulkan", "OpenCL", "xdg",
)  # fmt: skip
# Where other disks are; a part of the user's files.
_MEDIA = ("/media", "/mnt", "/run/media", "/srv")
_RESOLVERS = ("/run/systemd/resolve", "/run/NetworkManager/resolv.conf", "/run/resolvconf")
_GPU = ("dri", "kfd", "nvidia*", "mali*")
_CPU_FACTS = "/sys/devices/system"


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What one process may do; `Rules()` is nothing at all. Every path is absolute, and exists.

    Attributes:
        network: whether it may speak to other machines, and to this one by TCP, UDP and the like.
        read: files and directories that it may read, and run.
        write: those that it may change as well.
        sockets: sockets of other programs that it may connect to.
        devices: device files and directories of them that it may use.
        private: directories that are its own and empty, and lost when it ends: the home directory, /tmp and the like.
        hidden: files and directories inside the others that it may not have all the same.
        spawn: whether what it starts may outlive it.
        screen: whether it shares memory with other programs, as the display server needs it.
        abstract: whether it may connect to abstract sockets of other programs.
    """

    network: bool = False
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    sockets: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    private: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    spawn: bool = False
    screen: bool = False
    abstract: bool = False


def rules_for(
    spec: PluginSpec, program: str, environ: Mapping[str, str], tmp: str, hidden: Iterable[str] = ()
) -> Rules:
    """Return what a plugin's process may do.

    Args:
        spec: its permissions, its paths and its socket.
        program: what is run, as an absolute path.
        environ: the environment that says where the home directory, the session bus and the like are.
        tmp: its temporary directory.
        hidden: files of the runner's own that nobody gets.
    """
    granted = frozenset(spec.permissions) & PERMISSIONS.keys()
    home, runtime = _directory(environ, "HOME"), _directory(environ, "XDG_RUNTIME_DIR")
    read = [*_system(), *code_paths(home), *_own(spec, program, home), *_models(spec), *spec.read_paths, _CPU_FACTS]
    write = [tmp, *spec.write_paths]
    if granted & {"files.read", "files.write"}:
        (write if "files.write" in granted else read).extend(filter(None, [home, *_MEDIA]))
    if "network" in granted:
        read += [*_RESOLVERS, os.path.realpath("/etc/resolv.conf")]
    if "gpu" in granted:
        read.append("/sys")
    devices = _matching("/dev", _GPU) if "gpu" in granted else []
    if "input.inject" in granted:
        devices.append("/dev/uinput")
    sockets = [*_sockets(granted, runtime, environ)]
    if spec.transport == "connect":
        sockets.append(spec.socket_path)
    elif spec.transport == "listen":
        # A directory of its own; see `socket_path`.
        write.append(str(Path(spec.socket_path).parent))
    return Rules(
        network="network" in granted,
        read=_there(read),
        write=_there(write),
        sockets=_there(sockets),
        devices=_there(devices),
        private=_there(filter(None, ["/tmp", "/var/tmp", home, runtime])),  # noqa: S108 - to be replaced by an own one
        hidden=_there(hidden),
        spawn="process.spawn" in granted,
        screen="screen" in granted,
        # X servers listen on a path as well.
        abstract="session.bus" in granted and "abstract=" in environ.get("DBUS_SESSION_BUS_ADDRESS", ""),
    )


def visible_to(path: str, rules: Rules) -> bool:
    """Whether a path lies in what may be read or changed; what is hidden inside does not count here."""
    return any(Path(path).is_relative_to(one) for one in (*rules.read, *rules.write))


@cache
def code_paths(home: str) -> tuple[str, ...]:
    """Where the runner's interpreter, its packages and this program lie: plugins in Python run on the same.

    What contains the home directory is left out: it would give away far more than code.
    """
    named = [sys.prefix, sys.base_prefix, sys.exec_prefix, *sys.path]
    places = [*named, *map(os.path.realpath, filter(None, named)), *_links(sys.executable)]
    # The directory that -c or -m put there is where the runner happens to have been started.
    return _there(one for one in places if Path(one).is_absolute() and one != "/" and not _contains(one, home))


def _links(program: str) -> Iterator[str]:
    """A program and every link on the way to it."""
    for _ in range(40):
        yield program
        if not Path(program).is_symlink():
            return
        program = str(Path(program).parent / Path(program).readlink())


def _contains(path: str, home: str) -> bool:
    return bool(home) and Path(home).is_relative_to(os.path.realpath(path))


def _own(spec: PluginSpec, program: str, home: str) -> Iterator[str]:
    """The plugin's own code: its package, the directory that it runs in, its program, and files named to it."""
    for directory in (spec.package, spec.cwd):
        if directory and not _contains(directory, home):
            yield directory
    for word in (program, *spec.visible):
        yield from _links(word)


def _models(spec: PluginSpec) -> Iterator[str]:
    """The names of its models, and what those lead to."""
    if spec.models:
        store = Path(spec.model_store)
        yield str(plugin_models(store, spec.id))
        yield from (str(content_path(store, model.sha256)) for model in spec.models)


def _sockets(granted: frozenset[str], runtime: str, environ: Mapping[str, str]) -> Iterator[str]:
    if "session.bus" in granted:
        yield from session_bus(environ)
    if runtime and "microphone" in granted:
        yield from sound_sockets(environ)
    if "screen" in granted:
        yield from display_sockets(environ)


def session_bus(environ: Mapping[str, str]) -> list[str]:
    """Where the session bus is, as far as that is a path: `DBUS_SESSION_BUS_ADDRESS`, else `$XDG_RUNTIME_DIR/bus`."""
    addresses = environ.get("DBUS_SESSION_BUS_ADDRESS", "").split(";")
    found = [
        value
        for address in addresses
        for key, _, value in (part.partition("=") for part in address.removeprefix("unix:").split(","))
        if key == "path" and address.startswith("unix:")
    ]
    runtime = _directory(environ, "XDG_RUNTIME_DIR")
    return found or ([f"{runtime}/bus"] if runtime else [])


def sound_sockets(environ: Mapping[str, str]) -> list[str]:
    """Where PipeWire and its stand-in for PulseAudio listen."""
    runtime = _directory(environ, "XDG_RUNTIME_DIR")
    return [*_matching(runtime, ["pipewire-*[0-9]", "pipewire-*-manager"]), f"{runtime}/pulse"] if runtime else []


def display_sockets(environ: Mapping[str, str]) -> list[str]:
    """Where Wayland compositors and X servers listen, and the key to the latter."""
    runtime = _directory(environ, "XDG_RUNTIME_DIR")
    found = _matching(runtime, ["wayland-*[0-9]", "niri.*.sock"]) if runtime else []
    return [*found, *filter(None, ["/tmp/.X11-unix", environ.get("XAUTHORITY", "")])]  # noqa: S108 - where X listens


def _system() -> Iterator[str]:
    yield from SYSTEM
    for name in _SYSTEM_FILES:
        yield f"/etc/{name}"


def _matching(directory: str, patterns: Iterable[str]) -> list[str]:
    return sorted({str(path) for pattern in patterns for path in Path(directory).glob(pattern)})


def _directory(environ: Mapping[str, str], name: str) -> str:
    """A directory that a variable names; empty if it names none that could be given to anybody."""
    path = environ.get(name, "")
    return str(Path(path)) if path.startswith("/") and len(Path(path).parts) > 1 else ""


def _there(paths: Iterable[str]) -> tuple[str, ...]:
    found = []
    for path in dict.fromkeys(str(Path(one).expanduser()) for one in paths):
        try:
            if Path(path).is_absolute() and Path(path).exists():
                found.append(path)
        except OSError:
            # A directory on the way to it that is not ours.
            continue
    return tuple(found)
