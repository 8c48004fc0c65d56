"""`utter plugins new`: a plugin to begin with, copied from an example.

Rules here: `templates/` holds one example for each language and kind, as `LANGUAGE-KIND`. They are the very examples of
the repository (links there, copies in a package), so what people begin with is what is tested; wherever an example
says its own name, the copy says the new one. What exists is never written to.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from utter_protocol.manifest import ID_PATTERN, load_manifest
from utter_protocol.packages import MANIFEST_NAME, user_directories
from utter_runner.cli.connection import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

TEMPLATES: Final = Path(__file__).with_name("templates")
_LEFT_OUT: Final = frozenset({"README.md", "__pycache__", "node_modules"})
_README: Final = """\
# {name}

A plugin for utter-runner, of the kind {kind}.

## Try it

Put this into the runner's configuration (`~/.config/utter/runner.toml`) and run `utter reload`:

```toml
{entry}
```

`utter plugins` then lists it, and `utter plugins validate {name}` says whether it is in order.{names}

## Check it

    utter plugins check {manifest_name}
    utter conformance {manifest_name}
{tests}
What each message means is written in utter-runner's PROTOCOL.md.
"""
_NAMES: Final = """ Ops are common to all
plugins, and of two that offer the same one only the first carries it out: give yours names of their own."""


def choices() -> list[tuple[str, str]]:
    """The language and the kind of every plugin that there is to begin with."""
    found = (path.name.partition("-") for path in TEMPLATES.iterdir() if (path / MANIFEST_NAME).is_file())
    return sorted((language, kind) for language, _, kind in found)


def create(name: str, language: str, kind: str, directory: str) -> dict[str, Any]:
    """Write the package `name` into `directory`: `{directory, files, entry, tests}`.

    Raises:
        UsageError: the name is none, there is nothing to begin with for this language and kind, the package is there
            already, or it cannot be written.
    """
    if not re.fullmatch(ID_PATTERN, name):
        raise UsageError(
            f"{name!r} is not a plugin's name: 2 to 64 of the characters a-z 0-9 . _ -, the first a letter or digit."
        )
    template = TEMPLATES / f"{language}-{kind}"
    if (language, kind) not in choices():
        known = ", ".join(f"--lang {one} --kind {other}" for one, other in choices())
        raise UsageError(f"There is no plugin of the kind {kind} in {language} to begin with. There is: {known}.")
    target = Path(directory).absolute() / name
    try:
        target.mkdir()
    except FileExistsError:
        raise UsageError(f"{target} exists already, and nothing is written over.") from None
    except OSError as error:
        raise UsageError(f"{target} cannot be made: {error.strerror}.") from None
    entry = _entry(name, target)
    try:
        _fill(template, target, name, kind, entry)
        files = sorted(path.name for path in target.iterdir())
    except OSError as error:
        shutil.rmtree(target, ignore_errors=True)
        raise UsageError(f"{target} cannot be filled: {error.strerror}.") from None
    return {"directory": str(target), "files": files, "entry": entry, "tests": "test_plugin.py" in files}


def _entry(name: str, target: Path) -> str:
    """The `[[plugin]]` table for a package; one that lies where the runner looks needs no path."""
    found = target.parent in user_directories(os.environ)
    return "\n".join(["[[plugin]]", f'id = "{name}"', *([] if found else [f"manifest = {_quoted(str(target))}"])])


def _quoted(text: str) -> str:
    """A TOML string."""
    escaped = "".join(
        f"\\{char}" if char in '\\"' else char if char.isprintable() else f"\\U{ord(char):08x}" for char in text
    )
    return f'"{escaped}"'


def _fill(template: Path, target: Path, name: str, kind: str, entry: str) -> None:
    own = load_manifest(template / MANIFEST_NAME).name
    for source in _sources(template):
        copy = target / source.name.replace(own, name)
        copy.write_text(source.read_text().replace(own, name))
        copy.chmod(stat.S_IMODE(copy.stat().st_mode) | stat.S_IMODE(source.stat().st_mode) & 0o111)
    tests = "    python -m pytest\n" if (target / "test_plugin.py").exists() else ""
    readme = _README.format(
        name=name,
        kind=kind,
        entry=entry,
        manifest_name=MANIFEST_NAME,
        names=_NAMES if kind == "action" else "",
        tests=tests,
    )
    (target / "README.md").write_text(readme)
    # The runner would not start what everybody can change, whatever the umask.
    for path in (target, *target.iterdir()):
        path.chmod(stat.S_IMODE(path.stat().st_mode) & ~stat.S_IWOTH)


def _sources(template: Path) -> Iterator[Path]:
    return (path for path in sorted(template.iterdir()) if path.name not in _LEFT_OUT)
