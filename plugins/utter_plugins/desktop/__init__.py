"""The desktop plugin: opens pages, starts applications, drives players and the volume, and tells what plays.

Rules here: one module for each thing that the desktop offers (`opener`, `entries` + `execline` + `launch`, `mpris`,
`holding`, `volume`, `players`, `windows`); `ops` and `context` alone know the wire. Nothing goes through a shell. What
goes wrong for a reason that the user can do something about is a `Failure`, whose text is the sentence that the user
gets.
"""

from __future__ import annotations
