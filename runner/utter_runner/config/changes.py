"""How two configurations differ, and which keys a running daemon can take over.

Rules here: pure. A key that is not listed here waits for a restart, so that nobody is told that something holds which
does not. Plugins are not compared here: what they are told is more than their tables say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .schema import Config

WHOLE: Final = frozenset({"socket", "security", "policy", "hotkeys", "voice"})
"""The sections of which every key takes effect while the daemon runs."""
SINGLE: Final = frozenset({
    "audio.source", "audio.device", "audio.capture", "audio.wav_path", "audio.cues", "audio.output_device",
    "log.level", "log.content", "log.audit", "log.audit_bytes",
    "runner.plugin_dirs", "runner.rpc_timeout_ms", "runner.confirm_timeout_ms", "runner.handshake_timeout_ms",
    "runner.health_interval_ms", "runner.health_timeout_ms", "runner.handle_ttl", "runner.handle_scope_bytes",
    "runner.handle_scope_count", "runner.handle_total_bytes", "runner.lossy_queue", "runner.max_frame",
    "runner.max_in_flight", "runner.max_queued_bytes", "runner.max_clients", "runner.locked",
})  # fmt: skip
"""The keys of other sections of which the same is true."""


def takes_effect(key: str) -> bool:
    """Whether a key such as "voice.language" can be taken over by a daemon that runs."""
    return key.partition(".")[0] in WHOLE or key in SINGLE


def changed_keys(old: Config, new: Config) -> list[str]:
    """Return the keys that differ, such as "voice.language", in the order of the schema; "socket" where it appears."""
    found: list[str] = []
    for section in _sections(new):
        before, after = getattr(old, section), getattr(new, section)
        if before is None or after is None:
            found += [section] if before is not after else []
        else:
            found += [
                f"{section}.{key}"
                for key in after.__struct_fields__
                if _encoded(getattr(before, key)) != _encoded(getattr(after, key))
            ]
    return found


def keeping(old: Config, new: Config, keys: Iterable[str]) -> Config:
    """Return the new configuration with the old one's values of some keys, as `changed_keys` names them."""
    for key in keys:
        section, _, name = key.partition(".")
        table = msgspec.structs.replace(getattr(new, section), **{name: getattr(getattr(old, section), name)})
        new = msgspec.structs.replace(new, **{section: table})
    return new


def _sections(config: Config) -> list[str]:
    # What a file need not have is None; what is not a table is about the file, or about plugins.
    return [name for name in config.__struct_fields__ if isinstance(getattr(config, name), msgspec.Struct | None)]


def _encoded(value: Any) -> bytes:
    # To Python 1, 1.0 and true are the same; to a JSON Schema they are not.
    return msgspec.json.encode(value, order="deterministic")
