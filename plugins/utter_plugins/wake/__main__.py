"""`python -m utter_plugins.wake`: how the runner starts the plugin.

Rules here: nothing but the start.
"""

from __future__ import annotations

from .plugin import build

if __name__ == "__main__":
    build().run()
