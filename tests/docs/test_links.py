"""What the documentation points at exists: files and headings, commands, make targets, configuration keys."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import typer

from support.docs import ROOT, anchors, code, links
from utter_runner.cli.app import app
from utter_runner.config import PluginConfig, parse_config
from utter_runner.config.load import sections

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "protocol" / "PROTOCOL.md",
    *sorted((ROOT / "plugins").rglob("README.md")),
]
TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text() for path in PAGES}

_COMMAND = re.compile(r"(?<![\w./~-])utter ([a-z].*)")
_DAEMON_FLAG = re.compile(r"utter-runner(?: \S+)*? (--[a-z-]+)")
_TARGET = re.compile(r"(?<![\w./-])make ([a-z][a-z-]*)")
_KEY = re.compile(r"\[(?P<section>[a-z]+)\]\]? (?P<key>[a-z_]+)(?! section)\b")


def mentions(pattern: re.Pattern[str]) -> Iterator[tuple[str, re.Match[str]]]:
    """Every match in code on any page."""
    for page, text in TEXTS.items():
        for line in code(text):
            for match in pattern.finditer(line):
                yield page, match


@pytest.mark.parametrize("page", TEXTS)
def test_links_lead_somewhere(page: str) -> None:
    broken = []
    for target in links(TEXTS[page]):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (ROOT / page).parent / path if path else ROOT / page
        known = anchors(there.read_text()) if anchor and there.is_file() else [anchor]
        if not there.exists() or anchor not in known:
            broken.append(target)
    assert not broken


@pytest.mark.parametrize("page", TEXTS)
def test_no_two_headings_have_one_anchor(page: str) -> None:
    assert not [anchor for anchor, count in Counter(anchors(TEXTS[page])).items() if count > 1]


def test_commands_exist() -> None:
    root = typer.main.get_command(app)
    wrong, seen = [], set()
    for page, match in mentions(_COMMAND):
        problem = misuse(root, words(match[1]))
        seen.add(match[1].split()[0])
        if problem:
            wrong.append(f"{page}: utter {match[1]}: {problem}")
    assert not wrong
    # The other way round: there is no command that no page tells of.
    assert set(subcommands(root)) - {"version"} <= seen


def words(line: str) -> list[str]:
    """The words of a command line, without what a shell does with them."""
    try:
        found = shlex.split(line, comments=True)
    except ValueError:
        found = line.split()
    for end in ("|", "&&", ";", ">", "}"):
        found = found[: found.index(end)] if end in found else found
    return found


def subcommands(command: Any) -> dict[str, Any]:
    """The commands of a group. Typer has its own copy of click, so classes say nothing here."""
    return dict(getattr(command, "commands", {}))


def misuse(command: Any, arguments: list[str]) -> str:  # noqa: C901, PLR0911 - one return for each way to be wrong
    """What is wrong with a command line, as far as names go."""
    while known := subcommands(command):
        if not arguments:
            return ""
        name, *arguments = arguments
        if name not in known:
            return f"there is no {name}"
        command = known[name]
    options = {name: one for one in command.params for name in (*one.opts, *one.secondary_opts)}
    places = [one for one in command.params if one.param_type_name == "argument"]
    rest = iter(arguments)
    for word in rest:
        if word == "--":
            return ""
        if word.startswith("-"):
            option = options.get(word.partition("=")[0])
            if option is None and word not in {"-h", "--help"}:
                return f"there is no {word}"
            if option is not None and not option.is_flag and "=" not in word:
                next(rest, None)
        elif not places:
            return f"{word} is one word too many"
        else:
            place = places.pop(0)
            choices = (place.metavar or "").split("|")
            # In capitals stands what a word means, not what it is.
            if len(choices) > 1 and (place.metavar or "").islower() and word not in choices:
                return f"{place.name} cannot be {word}"
    return ""


def test_misuse_is_found() -> None:
    root = typer.main.get_command(app)
    for line in ("plugins resurrect", "fly", "ptt hold", "say --loud hello", "policy decide", "events --count 3 now"):
        assert misuse(root, words(line)), line
    for line in ("ptt press", "say 'open youtube' --json", "events --count 3", "policy explain OP JSON", "policy"):
        assert not misuse(root, words(line)), line


def test_flags_of_the_daemon_exist() -> None:
    argv = [sys.executable, "-m", "utter_runner", "--help"]
    known = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=True).stdout
    found = {match[1] for _, match in mentions(_DAEMON_FLAG)}
    assert {"--config", "--check"} <= found
    assert not {flag for flag in found if flag not in known}


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    found = {match[1] for _, match in mentions(_TARGET)}
    assert {"test", "check"} <= found <= targets


def test_configuration_keys_exist() -> None:
    known = {name: set(kind.__struct_fields__) for name, kind in sections().items()}
    found = {(page, match["section"], match["key"]) for page, match in mentions(_KEY) if match["section"] in known}
    assert len(found) > 10
    assert not {one for one in found if one[2] not in known[one[1]]}


def test_unknown_keys_are_found() -> None:
    assert {match["key"] for line in code("`[audio] sauce`\n") for match in _KEY.finditer(line)} == {"sauce"}


def test_configurations_are_valid() -> None:
    seen = 0
    for page, text in TEXTS.items():
        for block in re.findall(r"^```toml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            table = tomllib.loads(block)
            if not set(table) <= set(sections()):
                continue
            config = parse_config(block, page)
            assert config.path == page
            seen += 1
    assert seen > 2


def test_every_key_of_a_plugin_is_in_the_example() -> None:
    text = (ROOT / "config.example.toml").read_text()
    for field in msgspec.structs.fields(PluginConfig):
        assert re.search(rf"^(# )?\[?(plugin\.)?{field.name}\b", text, re.MULTILINE), field.name
