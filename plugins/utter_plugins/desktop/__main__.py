"""`python -m utter_plugins.desktop`: how the runner starts the plugin.

Rules here: nothing but the start.
"""

from __future__ import annotations

from .ops import build

if __name__ == "__main__":
    build().run()
