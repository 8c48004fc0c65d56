"""utter-runner: the daemon that lets a Linux desktop user hold a key, speak, and have the desktop act."""

__version__ = "0.1.0"
