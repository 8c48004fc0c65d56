"""The commands plugin: from a spoken sentence to steps, without a model.

Rules here: `plugin` alone knows the wire; everything else is pure or reads files. An utterance goes through `spoken`
(normal form), `router` (exact, then `sentences` with slots, then `nearest`), and comes out as steps. `phrases` reads
what is taught, `applications` what is installed, `teaching` ties them, `watch` tells when they change.
"""

from __future__ import annotations
