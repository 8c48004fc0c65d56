"""`python -m utter_plugins.espeak`: how the runner starts the plugin.

Rules here: nothing but the start.
"""

from __future__ import annotations

from .service import plugin

if __name__ == "__main__":
    plugin.run()
