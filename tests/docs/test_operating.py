"""docs/operating.md: the messages, defaults, files and settings that it names are those of the code."""

from __future__ import annotations

import ast
import configparser
import inspect
import re
import textwrap
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, get_args, get_type_hints

import pytest

from support.docs import ROOT, tables
from utter_runner import main
from utter_runner.cli import hearing
from utter_runner.cli.exits import Exit
from utter_runner.config import Config, parse_config
from utter_runner.config.schema import AudioConfig
from utter_runner.operate.units import HARDENING, SERVICE, shipped
from utter_runner.rpc.endpoint import default_socket_path
from utter_runner.voice.hotkeys import Bindings

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = (ROOT / "docs" / "operating.md").read_text()
_ANYTHING = "…"
_LEAST_WORDING = 8


@cache
def messages() -> str:
    """All texts in the code, one a line, with … for what is put in when they are shown."""
    found = []
    for root in ("runner", "plugins", "protocol"):
        for path in (ROOT / root).rglob("*.py"):
            found += _texts(ast.parse(path.read_text()))
    return "\n".join(found)


def _texts(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else _ANYTHING for part in node.values)
            yield "".join(map(str, parts)).replace("\n", " ")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value.replace("\n", " ")


@pytest.mark.parametrize("row", tables(PAGE, "| Message | What to do |"), ids=lambda row: row[0].strip("`")[:50])
def test_messages_are_those_of_the_code(row: list[str]) -> None:
    message, remedy = row
    assert message.startswith("`") and message.endswith("`"), message  # noqa: PT018 - one statement about one thing
    pieces = [piece.strip() for piece in message.strip("`").split(_ANYTHING)]
    assert max(map(len, pieces)) >= _LEAST_WORDING, "too little to be told from other messages"
    assert re.search(".*?".join(map(re.escape, pieces)), messages())
    assert remedy.endswith((".", "?"))


def test_a_message_that_nobody_writes_is_found() -> None:
    assert "there is no socket, so the runner is not running." in messages()
    assert "The microphone is out of order." not in messages()


def test_there_are_messages() -> None:
    assert len(tables(PAGE, "| Message | What to do |")) > 30


def test_the_defaults_of_the_limits_are_those_of_the_configuration() -> None:
    rows = tables(PAGE, "| Key | Default | When it is reached |")
    assert len(rows) > 5
    for key, default, _ in rows:
        section, name = re.fullmatch(r"`\[(\w+)\] (\w+)`", key).groups()  # type: ignore[union-attr]  # fails the test
        assert getattr(getattr(Config(), section), name) == int(default), key


def test_the_audio_sources_are_those_of_the_configuration() -> None:
    rows = tables(PAGE, "| `[audio] source` | What it is | Needs |")
    named = list(get_args(get_type_hints(AudioConfig)["source"]))
    assert [row[0].strip('`"') for row in rows] == named


def test_the_socket_table_is_valid_configuration() -> None:
    rows = tables(PAGE, "| Section `[socket]` | Who is let in |")
    assert [row[0] for row in rows[:2]] == ["not there", "empty"]
    for setting, _ in rows[2:]:
        text = setting.strip("`").replace('"..."', '"0123456789abcdef"')
        assert parse_config(f"[socket]\n{text}\n").socket is not None


def test_the_hotkeys_are_keys() -> None:
    (block,) = re.findall(r"^```toml\n(\[hotkeys\].*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    hotkeys = parse_config(block).hotkeys
    bindings = Bindings.parse(push_to_talk=hotkeys.push_to_talk, toggle=hotkeys.toggle, cancel=hotkeys.cancel)
    assert len(list(bindings)) == 3


def test_the_paths_are_those_of_the_code(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    environ = {"XDG_RUNTIME_DIR": str(tmp_path), "XDG_CONFIG_HOME": "/c"}
    assert str(default_socket_path(environ)).replace(str(tmp_path), "$XDG_RUNTIME_DIR") in PAGE
    assert str(main.default_config_path(environ)).replace("/c", "$XDG_CONFIG_HOME", 1) in PAGE


def test_the_unit_says_what_the_page_says() -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str  # type: ignore[method-assign,assignment]  # how configparser is told to keep the case
    unit.read_string(shipped(SERVICE))
    service = unit["Service"]
    assert service["RestartPreventExitStatus"] == str(main.EXIT_USAGE)
    watchdog, limits = int(service["WatchdogSec"]), unit["Unit"]
    assert f"feeds a watchdog every {watchdog // 2} s; if it stands still for {watchdog} s" in " ".join(PAGE.split())
    assert (limits["StartLimitBurst"], limits["StartLimitIntervalSec"]) == ("6", "120")
    hardening = re.findall(r"^(\w+)=", shipped(HARDENING), re.MULTILINE)
    # What is left out is not there.
    for names, _ in tables(PAGE, "| Left out | Why |"):
        assert not {name.strip("`=, ") for name in names.split()} & (set(service) | set(hardening)), names
    # What is said to be there is.
    assert all(f"`{name}=`" in PAGE for name in hardening)


def test_the_verdicts_on_a_microphone_are_those_of_the_code() -> None:
    made = set(re.findall(r'_(?:bad|broken)\(\s*"(\w+)"|Verdict\("(\w+)"', inspect.getsource(hearing)))
    verdicts = {one or other for one, other in made}
    rows = {row[0].strip("`"): row for row in tables(PAGE, "| Verdict | What it means | Exit code |")}
    assert rows.keys() == verdicts
    assert f"{hearing.QUIET_DB:.0f} dB" in rows["quiet"][1]
    assert f"by {hearing.CONTRAST_DB:.0f} dB" in rows["noisy"][1]
    assert hearing.LOST_SHARE == 1 / 20
    assert {row[2] for row in rows.values()} == {str(int(code)) for code in (Exit.DONE, Exit.FAILED, Exit.UNAVAILABLE)}


def test_the_example_of_a_microphone_is_valid_configuration() -> None:
    (block,) = re.findall(r"^ *```toml\n( *\[audio\].*?)^ *```$", PAGE, re.MULTILINE | re.DOTALL)
    assert parse_config(textwrap.dedent(block)).audio.source == "pw-record"
