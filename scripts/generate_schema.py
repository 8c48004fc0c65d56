"""Writes protocol/plugin.schema.json, the JSON Schema of `utter-plugin.toml`, from the Struct that reads manifests.

Rules here: the file is never edited by hand; `--check` only compares, and exits 1 when the file is not what the Struct
says.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from utter_protocol.manifest import Manifest

SCHEMA = Path(__file__).parents[1] / "protocol" / "plugin.schema.json"

# Python's `$` also matches before a final newline, JSON Schema's does not, so the guard against that is not needed.
_PYTHON_ONLY = r"$(?!\n)"


def build_schema() -> str:
    """The text of the schema file."""
    generated = msgspec.json.schema(Manifest)
    definitions = generated["$defs"]
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **definitions.pop("Manifest"),
        "title": "utter-plugin.toml",
        "$defs": definitions,
    }
    return json.dumps(_portable(schema), indent=2) + "\n"


def _portable(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: child.replace(_PYTHON_ONLY, "$") if key == "pattern" and isinstance(child, str) else _portable(child)
            for key, child in value.items()
        }
    if isinstance(value, list):
        return [_portable(child) for child in value]
    return value


def main() -> int:
    """Run the command line; the exit code is 0, or 1 when `--check` finds a difference."""
    parser = argparse.ArgumentParser(description="Write the JSON Schema of plugin manifests.")
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 when the file is out of date")
    arguments = parser.parse_args()
    text = build_schema()
    if not arguments.check:
        SCHEMA.write_text(text)
        print(f"wrote {SCHEMA}")
        return 0
    if SCHEMA.is_file() and SCHEMA.read_text() == text:
        return 0
    print(f"{SCHEMA} is out of date: run scripts/generate_schema.py and commit the file.", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
