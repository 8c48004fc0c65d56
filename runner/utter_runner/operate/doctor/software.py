"""Checks of what has to be installed for what is configured: Python packages, programs, and the sandbox.

Rules here: only what the configuration wants is missed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from utter_runner.config.secret import is_reference
from utter_runner.operate.doctor.model import Finding, broken, ok, warning
from utter_runner.operate.doctor.plugins import manifest_of
from utter_runner.operate.doctor.registry import check
from utter_runner.operate.doctor.words import install

if TYPE_CHECKING:
    from collections.abc import Iterator

    from utter_runner.operate.doctor.look import Look

# The modules of each extra; a plugin that ships has the extra of its name, or this one.
EXTRAS: Final = {
    "audio": ("numpy", "sounddevice", "soxr"),
    "whisper": ("faster_whisper", "numpy"),
    "commands": ("hassil", "jellyfish", "rapidfuzz"),
    "desktop": ("jeepney",),
    "llm": ("httpx",),
    "wake": ("numpy", "pymicro_wakeword"),
    "wasm": ("wasmtime",),
}
_USERNS: Final = {
    "/proc/sys/kernel/unprivileged_userns_clone": ("0", "sudo sysctl kernel.unprivileged_userns_clone=1"),
    "/proc/sys/user/max_user_namespaces": ("0", "sudo sysctl user.max_user_namespaces=15000"),
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": (
        "1",
        "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0",
    ),
}


def wanted_extras(look: Look) -> dict[str, str]:
    """The extras that the configuration needs, each with what needs it."""
    wanted: dict[str, str] = {}
    if look.config.audio.source == "sounddevice":
        wanted["audio"] = '[audio] source = "sounddevice"'
    for entry in look.config.plugin:
        if not entry.enabled:
            continue
        ships = entry.manifest is None and entry.entrypoint is None
        if ships and entry.id in EXTRAS:
            wanted[entry.id] = f"the plugin {entry.id}"
        manifest = manifest_of(look, entry)
        if (entry.runtime or (manifest.runtime if manifest else "")) == "wasm":
            wanted["wasm"] = f"the plugin {entry.id}"
    token = look.config.socket.token if look.config.socket else None
    references = [ref for entry in look.config.plugin if entry.enabled for ref in entry.secret_env.values()]
    if any(ref.startswith("secret:") and is_reference(ref) for ref in [*references, token or ""]):
        wanted["desktop"] = "a reference to the Secret Service"
    return wanted


@check("software.packages")
def packages(look: Look) -> Iterator[Finding]:
    """Whether the optional Python packages are there that the configuration needs."""
    wanted = wanted_extras(look)
    lacking = False
    for extra, what in wanted.items():
        missing = [module for module in EXTRAS[extra] if not look.outside.installed(module)]
        if missing:
            lacking = True
            yield broken(
                f"{what[0].upper()}{what[1:]} needs Python packages that are not installed: {', '.join(missing)}.",
                "It does not work without them.",
                f"pip install 'utter-runner[{extra}]'",
            )
    if not lacking:
        yield ok(f"The extras that are needed are installed: {', '.join(wanted) or 'none is needed'}.")


@check("software.sandbox")
def sandbox(look: Look) -> Iterator[Finding]:
    """Whether there is what the sandbox is made of."""
    if not look.config.security.enforce:
        yield ok("No sandbox is wanted: [security] enforce is off.")
        return
    named = look.config.security.sandbox
    abi = look.outside.landlock()
    bwrap, scopes = look.outside.which("bwrap"), _scopes(look)
    if bwrap is None and ("bubblewrap" in named if named else not abi):
        yield broken(
            "There is no bubblewrap" + ("." if named else ", and the kernel has no Landlock."),
            "Nothing could hold a plugin back, so none is started.",
            install(look.outside, "bubblewrap"),
        )
    elif bwrap is None:
        yield warning(
            "bubblewrap is not installed; Landlock alone holds the plugins.",
            "They still see the names of your files and processes.",
            install(look.outside, "bubblewrap"),
        )
    closed = [mend for path, (value, mend) in _USERNS.items() if bwrap and _says(look, path) == value]
    if closed and look.outside.uid:
        yield broken(
            "Users may not make user namespaces here.", "bubblewrap cannot build its sandbox without them.", closed[0]
        )
    if not abi and bwrap is not None:
        yield warning(
            "The kernel has no Landlock.",
            "Only bubblewrap holds the plugins; abstract sockets and signals are not held back.",
            "Edit the kernel's command line: add lsm=landlock,...",
        )
    if not scopes and named and "systemd-run" in named:
        yield broken(
            "[security] sandbox names systemd-run, and no systemd user manager runs.",
            "No plugin is started.",
            look.edit("[security] sandbox, without systemd-run"),
        )
    if bwrap and abi and not (closed and look.outside.uid):
        yield ok(f"bubblewrap, Landlock {abi}{', systemd scopes' if scopes else ''}.")


def _scopes(look: Look) -> bool:
    return look.outside.which("systemd-run") is not None and look.manager_environ() is not None


def _says(look: Look, path: str) -> str:
    try:
        return look.outside.read(path).strip()
    except OSError:
        return ""
