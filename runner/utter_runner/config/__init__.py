"""Reading the runner's configuration file.

Rules here: `load_config` is the only function that touches the disk; all errors of a file are found in one go;
importing this package stays cheap, because the daemon and the command both start through it.
"""

from __future__ import annotations

from .load import ConfigError, load_config, parse_config
from .schema import (
    AudioConfig,
    Config,
    HotkeysConfig,
    LogConfig,
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
    "PluginConfig",
    "PolicyConfig",
    "RunnerConfig",
    "SecurityConfig",
    "SocketConfig",
    "VoiceConfig",
    "load_config",
    "parse_config",
]
