"""Reading the runner's configuration file.

Rules here: only `load_config`, `place_in` for a message, and `with_token` touch the disk (`tokens` is about a file of
its own); all errors of a file are found in one go; importing this package stays cheap, because the daemon and the
command both start through it.
"""

from __future__ import annotations

from .load import ConfigError, default_config_path, load_config, parse_config, place_in, with_token
from .schema import (
    AudioConfig,
    Config,
    HotkeysConfig,
    LogConfig,
    OpConfig,
    PluginConfig,
    PolicyConfig,
    RunnerConfig,
    SecurityConfig,
    SocketConfig,
    VoiceConfig,
)

__all__ = [
    "AudioConfig",
    "Config",
    "ConfigError",
    "HotkeysConfig",
    "LogConfig",
    "OpConfig",
    "PluginConfig",
    "PolicyConfig",
    "RunnerConfig",
    "SecurityConfig",
    "SocketConfig",
    "VoiceConfig",
    "default_config_path",
    "load_config",
    "parse_config",
    "place_in",
    "with_token",
]
