"""Reading the configuration: defaults, bounds, and all that can be wrong with it."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from utter_protocol.manifest import ID_PATTERN
from utter_runner.config import Config, ConfigError, OpConfig, PluginConfig, SocketConfig, load_config, parse_config
from utter_runner.config.load import MAX_BYTES, MAX_PROBLEMS
from utter_runner.config.schema import FORBIDDEN_SCHEMES, PluginId
from utter_runner.policy import PolicyRules, canonical_op, urls

EXAMPLE = Path(__file__).parents[2] / "config.example.toml"
SECTIONS = [name for name in Config.__struct_fields__ if name not in {"path", "warnings", "digest", "secret_files"}]


def problems(text: str) -> list[str]:
    """What is wrong with a text, without the file's name."""
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "config.toml")
    assert all(problem.startswith("config.toml:") for problem in caught.value.problems)
    assert str(caught.value) == "\n".join(caught.value.problems)
    return [problem.removeprefix("config.toml:") for problem in caught.value.problems]


def test_an_empty_file_means_the_defaults() -> None:
    config = parse_config("", "config.toml")
    assert msgspec.structs.replace(config, path="") == Config()
    assert config.socket is None
    assert config.runner.rpc_timeout_ms == config.runner.confirm_timeout_ms == 30_000
    assert (config.runner.lossy_queue, config.runner.credit_window) == (256, 64)
    assert config.voice.pre_roll_ms == 300
    assert config.policy.url_schemes == ["http", "https", "mailto"]


def test_every_key_is_read() -> None:
    text = """
[runner]
rpc_timeout_ms = 60_000
[socket]
[security]
enforce = true
[policy]
enabled_ops = ["action.terminal"]
[[plugin]]
id = "one"
kind = "router"
entrypoint = ["node", "x.js"]
env = { "HOME" = "/x" }
restart = "never"
[plugin.settings]
any.thing = [1, "two"]
[[plugin]]
id = "two"
[audio]
source = "none"
[hotkeys]
push_to_talk = "LEFTMETA+SPACE"
[voice]
language = "pt-BR"
[log]
level = "debug"
"""
    config = parse_config(text, "config.toml")
    assert config.runner.rpc_timeout_ms == 60_000
    assert config.socket == SocketConfig()
    assert config.security.enforce is True
    assert config.policy.enabled_ops == ["action.terminal"]
    assert config.plugin[0].settings == {"any": {"thing": [1, "two"]}}
    assert config.plugin[0].entrypoint == ["node", "x.js"]
    assert config.plugin[1] == PluginConfig(id="two")
    assert (config.audio.source, config.voice.language, config.log.level) == ("none", "pt-BR", "debug")


WRONG = [
    (
        "\n\n[runner]\n# comment\nrpc_timout_ms = 5",
        "5: [runner] has no key 'rpc_timout_ms'; did you mean 'rpc_timeout_ms'?",
    ),
    ("[sokcet]", "1: There is no section or key 'sokcet' at the top level; did you mean [socket]?"),
    ("[plugins]", "1: There is no section or key 'plugins' at the top level; did you mean [[plugin]]?"),
    ("socket_path = 'x'", "1: There is no section or key 'socket_path' at the top level; it belongs to [runner]."),
    ("[log]\nenforce = true", "2: [log] has no key 'enforce'; it belongs to [security]."),
    ("[log]\nzzz = 1", "2: [log] has no key 'zzz'. Known are: level, content, audit, audit_bytes."),
    (
        "[runner]\nrpc_timeout_ms = 0",
        "2: [runner] rpc_timeout_ms must be a whole number from 1 to 60000, not the number 0.",
    ),
    (
        "[runner]\nrpc_timeout_ms = 60001",
        "2: [runner] rpc_timeout_ms must be a whole number from 1 to 60000, not the number 60001.",
    ),
    (
        "[runner]\nlossy_queue = true",
        "2: [runner] lossy_queue must be a whole number from 1 to 65536, not true.",
    ),
    (
        "[runner]\nlossy_queue = 1.5",
        "2: [runner] lossy_queue must be a whole number from 1 to 65536, not the number",
    ),
    ("[runner]\nsocket_path = ''", "2: [runner] socket_path must be a path, not the text ''."),
    ("[runner]\nplugin_dirs = 'x'", "2: [runner] plugin_dirs must be a list (each entry: a path), not the text 'x'."),
    (
        "[runner]\nplugin_dirs = ['a', 5]",
        "2: [runner] plugin_dirs must be a list (each entry: a path), but entry 2 is the number 5.",
    ),
    ("[security]\nenforce = 'yes'", "2: [security] enforce must be true or false, not the text 'yes'."),
    ("[voice]\ntap = 'x'", '2: [voice] tap must be one of "ignore", "toggle", not the text \'x\'.'),
    ("[voice]\ntap = 1979-05-27", '2: [voice] tap must be one of "ignore", "toggle", not a date or time.'),
    ("[voice]\nlanguage = {}", '2: [voice] language must be a language tag such as "en" or "pt-BR", not a table.'),
    ("[hotkeys]\ntoggle = []", "2: [hotkeys] toggle must be a text, not an empty list."),
    ("[hotkeys]\ntoggle = ['x']", "2: [hotkeys] toggle must be a text, not a list."),
    ("runner = 3", "1: [runner] must be a table, not the number 3."),
    ("[[runner]]", "1: [runner] must be a table, not a list."),
    ("[plugin]\nid = 'x'", "1: Plugins are written as tables with the header [[plugin]], in two brackets."),
    ("plugin = [1]", "1: Plugins are written as tables with the header [[plugin]], in two brackets."),
    ("[[plugin]]\nid = 'ab'\nentrypoint = []", "3: [[plugin]] 'ab' entrypoint must be a list that is not empty"),
    ("[[plugin]]\nid = 'ab'\nspawn = 0", "3: [[plugin]] 'ab' spawn must be true or false, not the number 0."),
    (
        "[[plugin]]\nid = 'ab'\nallow_binaries = []",
        "3: [[plugin]] 'ab' allow_binaries must be a list that is not empty (each entry: a path), not an empty list.",
    ),
    (
        "[[plugin]]\nid = 'ab'\nallow_binaries = ['/bin/x', '']",
        "3: [[plugin]] 'ab' allow_binaries must be a list that is not empty (each entry: a path), but entry 2 is",
    ),
    (
        "[[plugin]]\nid = 'ab'\ntransport = 'tcp'",
        '3: [[plugin]] \'ab\' transport must be one of "connect", "listen", "stdio", not the text \'tcp\'.',
    ),
    ("[[plugin]]\nenabled = true", "1: [[plugin]] needs the key 'id': a plugin's id"),
    ("[[plugin]]\nid = 'A\\nb'", "2: [[plugin]] 'A\\\\nb' id must be a plugin's id"),
    ('[[plugin]]\nid = "ab\\n"', "2: [[plugin]] 'ab\\n' id must be a plugin's id"),
    ("[[plugin]]\nid = 'ab'\nenv = { A = 1 }", "3: [[plugin]] 'ab' env must be a table, with names of"),
    (
        "[[plugin]]\nid = 'ab'\nenv = { 'a=b' = '' }",
        "3: [[plugin]] 'ab' env must be a table, with names of",
    ),
    (
        "[[plugin]]\nid = 'ab'\n[[plugin]]\nid = 'cd'\n[[plugin]]\nenabled = false\nid = 'ab'",
        "7: [[plugin]] 'ab' is already configured in line 1; ids are unique.",
    ),
    ("[policy]\nenabled_ops = ['Term']", "2: [policy] enabled_ops must be a list (each entry: the name of an op"),
    (
        "[policy]\nenabled_ops = ['terminal']\ndisabled_ops = ['action.terminal']",
        "3: [policy] enabled_ops and disabled_ops both name 'terminal'.",
    ),
    (
        "[policy]\nurl_schemes = ['https', 'javascript']",
        "2: [policy] url_schemes names 'javascript', which can never be opened: it runs code or reads local files.",
    ),
    (
        "[policy]\nurl_schemes = ['HTTP']",
        "2: [policy] url_schemes must be a list (each entry: the name of a URL",
    ),
    ("[audio]\nsource = 'wav'", "2: [audio] source = \"wav\" needs the key 'wav_path'."),
    ("[hotkeys]\ncancel = 'key_rightctrl'", "2: [hotkeys] cancel and push_to_talk are the same key, 'key_rightctrl'."),
    (
        "[runner]\nmax_frame = 33554433",
        "2: [runner] max_queued_bytes (33554432) must not be less than max_frame (33554433)",
    ),
    ("[runner]\nmax_queued_bytes = 70000", "2: [runner] max_queued_bytes (70000) must not be less than max_frame"),
    ("[runner]\nhandle_root = '~nobody-of-that-name/x'", "2: [runner] handle_root begins with a ~ that stands for no"),
    ("[runner]\nx = ", "2: The file ends too early: Invalid value."),
    ("a = 1\nb = 2 3", "2: Not TOML at column 7: Expected newline or end of document after a statement."),
    ("[log]\n[log]", "2: Not TOML at column 5: Cannot declare ('log',) twice."),
]


@pytest.mark.parametrize(("text", "problem"), WRONG)
def test_what_is_wrong_is_named_with_its_line(text: str, problem: str) -> None:
    found = problems(text)
    assert len(found) == 1
    assert found[0].startswith(problem)


def test_all_problems_are_reported_together_in_the_order_of_lines() -> None:
    text = """
[voice]
tap = 1
[[plugin]]
id = "same"
[[plugin]]
id = "same"
restart = "sometimes"
[runner]
max_frame = 99999999
[policy]
url_schemes = ["data"]
[logs]
"""
    assert [problem.split(": ")[0] for problem in problems(text)] == ["3", "7", "8", "10", "12", "13"]


def test_no_more_problems_are_reported_than_somebody_reads() -> None:
    found = problems("\n".join(f"key{at} = 1" for at in range(MAX_PROBLEMS + 7)))
    assert len(found) == MAX_PROBLEMS + 1
    assert found[-1] == " There are 7 more problems."


@pytest.mark.parametrize(
    "text", ["[socket]\ntoken = '{}'", "[socket]\ntoken = ['{}']", "[[plugin]]\nid = 'ab'\nenv = '{}'"]
)
def test_secrets_are_not_shown(text: str) -> None:
    assert "hunter2" not in problems(text.format("hunter2"))[0]
    config = parse_config("[socket]\ntoken = 'correct-horse-battery'")
    assert config.socket is not None
    assert config.socket.token == "correct-horse-battery"  # noqa: S105 - a value to look for
    assert "correct" not in repr(config)


def test_paths_count_from_the_file_and_from_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    file = tmp_path / "config.toml"
    file.write_text(
        """
[runner]
socket_path = "~/run/utter.sock"
plugin_dirs = ["plugins", "/opt/plugins"]
[[plugin]]
id = "one"
cwd = "."
entrypoint = ["./run"]
write_paths = ["~"]
allow_binaries = ["bin/one", "~/one"]
"""
    )
    config = load_config(file)
    assert config.path == str(file)
    assert config.runner.socket_path == "/home/somebody/run/utter.sock"
    assert config.runner.plugin_dirs == [str(tmp_path / "plugins"), "/opt/plugins"]
    assert config.plugin[0].cwd == str(tmp_path)
    assert config.plugin[0].write_paths == ["/home/somebody"]
    assert config.plugin[0].allow_binaries == [str(tmp_path / "bin/one"), "/home/somebody/one"]
    assert config.plugin[0].entrypoint == ["./run"]


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o640, True), (0o604, True), (0o622, False)])
def test_a_token_that_others_can_read_is_a_warning(tmp_path: Path, mode: int, warned: bool) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[socket]\ntoken = 'correct-horse-battery'")
    file.chmod(mode)
    warnings = load_config(file).warnings
    assert len(warnings) == warned
    assert all("chmod 600" in warning and str(file) in warning for warning in warnings)
    file.write_text("[socket]\n")
    assert load_config(file).warnings == ()


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    cases: list[tuple[bytes | None, str]] = [
        (None, ": The configuration cannot be read: No such file or directory."),
        (b"[log]\nlevel = '\xff'", ":2: The configuration is not UTF-8."),
        (b"#" * (MAX_BYTES + 1), f": The configuration is longer than {MAX_BYTES} bytes."),
        (b"a = " + b"[" * 5000 + b"]" * 5000, ": The configuration is nested too deeply."),
    ]
    for at, (content, problem) in enumerate(cases):
        file = tmp_path / f"{at}.toml"
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(ConfigError) as caught:
            load_config(str(file))
        assert caught.value.problems == (f"{file}{problem}",)
    with pytest.raises(ConfigError, match="Is a directory"):
        load_config(tmp_path)


def test_a_byte_order_mark_is_no_error(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(b"\xef\xbb\xbf[log]\nlevel = 'error'\r\n")
    assert load_config(file).log.level == "error"


def test_the_example_loads_and_names_the_plugins_that_ship() -> None:
    config = load_config(EXAMPLE)
    assert [plugin.id for plugin in config.plugin] == ["commands", "whisper", "desktop", "espeak"]
    assert config.plugin[2].settings == {"dry_run": False}
    assert config.warnings == ()
    assert config.socket == SocketConfig(allow_same_uid=True)


def test_the_example_holds_every_key_and_the_defaults_are_what_it_says() -> None:
    text = re.sub(r"^# (?=[a-z_]+ = |\[)", "", EXAMPLE.read_text(), flags=re.MULTILINE)
    parse_config(text)
    raw = tomllib.loads(text)
    assert set(raw) == set(SECTIONS)
    defaults = Config(socket=SocketConfig(), plugin=[PluginConfig(id="example")])
    for section in SECTIONS:
        table: dict[str, Any] = raw[section][-1] if section == "plugin" else raw[section]
        default = defaults.plugin[0] if section == "plugin" else getattr(defaults, section)
        assert set(table) == set(default.__struct_fields__), section
        if section in {"plugin", "socket"}:
            continue
        for key, value in table.items():
            if key == "ops":
                ((_, op),) = value.items()
                assert set(op) == set(OpConfig.__struct_fields__)
                continue
            assert getattr(default, key) in (None, value), f"[{section}] {key}"


def test_every_key_of_the_example_has_a_line_that_explains_it() -> None:
    lines = [line for line in EXAMPLE.read_text().splitlines() if not line.startswith("[[")]
    for above, line in itertools.pairwise(lines):
        if re.match(r"(# )?[a-z_]+ = ", line):
            assert re.match(r"# [A-Z\"]", above), line


def test_what_config_and_policy_both_know_is_the_same() -> None:
    assert FORBIDDEN_SCHEMES == urls.FORBIDDEN_SCHEMES
    default = Config().policy
    assert PolicyRules().url_schemes == set(default.url_schemes)
    for op, accepted in (
        ("terminal", True),
        ("action.terminal", True),
        ("x" * 64, True),
        ("Terminal", False),
        ("a\n", False),
    ):
        assert (canonical_op(op) is not None) == accepted
        assert _accepts(f"[policy]\nenabled_ops = [{op!r}]".replace("'", '"')) == accepted


def _accepts(text: str) -> bool:
    try:
        parse_config(text)
    except ConfigError:
        return False
    return True


@pytest.mark.parametrize("name", ["ab", "a", "a" * 64, "a" * 65, "9.a_b-c", "_a", "A1", "ab\n", ""])
def test_a_plugin_s_id_is_what_its_manifest_may_say(name: str) -> None:
    matches = re.fullmatch(ID_PATTERN, name) is not None
    try:
        msgspec.convert(name, PluginId)
    except msgspec.ValidationError:
        assert not matches
    else:
        assert matches


def test_importing_it_is_cheap() -> None:
    code = (
        "import sys, utter_runner.config\n"
        "print(sorted({'ada_url', 'jsonschema_rs', 'trio', 'asyncio', 'socket', 'difflib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_a_model_is_checked_as_in_a_manifest() -> None:
    text = """
[[plugin]]
id = "ear"
[[plugin.models]]
name = "{name}"
url = "{url}"
sha256 = "{sha256}"
size = 5
{more}
"""
    good = {"name": "a/b.bin", "url": "https://example.org/x", "sha256": "0" * 64, "more": ""}
    (model,) = parse_config(text.format(**good)).plugin[0].models
    assert (model.name, model.size) == ("a/b.bin", 5)
    for key, value, line, message in (
        ("name", "../b.bin", 5, 'models[0].name is "../b.bin", and it must be a relative path of 1 to 8 parts'),
        ("url", "http://example.org/x", 6, 'url is "http://example.org/x", and it must be an https address'),
        ("sha256", "0", 7, "and it must be 64 lower-case hexadecimal digits"),
        ("more", "sizes = 5", 9, "There is no field plugin[0].models[0].sizes. Did you mean size?"),
    ):
        with pytest.raises(ConfigError) as caught:
            parse_config(text.format(**{**good, key: value}))
        (problem,) = caught.value.problems
        assert problem.startswith(f"config.toml:{line}: [[plugin]] 'ear' ")
        assert message in problem
    with pytest.raises(ConfigError, match="models must be at most 64 tables"):
        parse_config('[[plugin]]\nid = "ear"\nmodels = 3\n')
