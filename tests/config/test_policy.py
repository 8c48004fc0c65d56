"""`[policy.ops.NAME]`: what it may say, what contradicts, and what it becomes."""

from __future__ import annotations

from typing import Any

import pytest

from utter_runner.actions.rules import policy_rules
from utter_runner.config import Config, ConfigError, OpConfig, load_config, parse_config
from utter_runner.config.policy_checks import COMMAND_OPS, URL_OPS
from utter_runner.policy import OpRule, PolicyRules, Rate, builtin, parse_rate

# What is wrong, and the beginning of what is said about it.
WRONG: list[tuple[str, str]] = [
    ("[policy]\nops = 3", "2: [policy] ops must be tables with headers such as [policy.ops.open_url]."),
    ("[policy.ops]\nmute = 1", "2: [policy.ops.mute] must be a table, not the number 1."),
    ("[policy.ops.Mute]", "1: [policy.ops] 'Mute' must be the name of an op (1 to 64"),
    ("[policy.ops.mute]\nrat = 1", "2: [policy.ops.mute] has no key 'rat'; did you mean 'rate'?"),
    ("[policy.ops.mute]\nlevel = 1", "2: [policy.ops.mute] has no key 'level'; it belongs to [log]."),
    ("[policy.ops.mute]\nenabled = 'yes'", "2: [policy.ops.mute] enabled must be true or false, not the text 'yes'."),
    (
        "[policy.ops.mute]\nconfirm = 'no'",
        '2: [policy.ops.mute] confirm must be one of "always", "never", "untrusted", not the text',
    ),
    ("[policy.ops.mute]\nrate = 10", '2: [policy.ops.mute] rate must be how often, such as "10/minute" (1 to 9999'),
    ("[policy.ops.mute]\nrate = '0/hour'", '2: [policy.ops.mute] rate must be how often, such as "10/minute"'),
    ("[policy.ops.mute]\nrate = '1/day'", '2: [policy.ops.mute] rate must be how often, such as "10/minute"'),
    ("[policy.ops.mute]\nrate = '10000/hour'", '2: [policy.ops.mute] rate must be how often, such as "10/minute"'),
    ("[policy.ops.open_url]\nschemes = 'https'", "2: [policy.ops.open_url] schemes must be a list (each entry: the"),
    ("[policy.ops.open_url]\nschemes = ['HTTP']", "2: [policy.ops.open_url] schemes must be a list (each entry: the"),
    (
        "[policy.ops.open_url]\nschemes = ['https', 'file']",
        "2: [policy.ops.open_url] schemes names 'file', which can never be opened: it runs code or reads local files.",
    ),
    (
        "[policy.ops.open_url]\nschemes = ['tel']",
        "2: [policy.ops.open_url] schemes names 'tel', which [policy] url_schemes does not: an op can only open fewer.",
    ),
    (
        "[policy.ops.mute]\nschemes = ['https']",
        "2: [policy.ops.mute] schemes is for open_url and ensure_url only: 'mute' opens no addresses by itself.",
    ),
    (
        "[policy.ops.mute]\nfrom_llm = true",
        "2: [policy.ops.mute] from_llm is for terminal and input only",
    ),
    (
        "[policy.ops.terminal]\nspoken = true",
        "2: [policy.ops.terminal] spoken is true, but what runs commands or types is never confirmed by voice.",
    ),
    (
        "[policy.ops.mute]\nenabled = true\n[policy]\ndisabled_ops = ['action.mute']",
        "2: [policy.ops.mute] enabled is true, but [policy] disabled_ops names 'mute'.",
    ),
    (
        "[policy]\nenabled_ops = ['terminal']\n[policy.ops.terminal]\nrate = '1/hour'\nenabled = false",
        "5: [policy.ops.terminal] enabled is false, but [policy] enabled_ops names 'terminal'.",
    ),
    (
        "[policy]\nconfirm_ops = ['mute']\n[policy.ops.\"action.mute\"]\nconfirm = 'never'",
        '4: [policy.ops.action.mute] confirm is "never", but [policy] confirm_ops names \'mute\', which is "always".',
    ),
    (
        "[policy]\nconfirm_ops = ['mute']\n[policy.ops.mute]\nconfirm = 'untrusted'",
        '4: [policy.ops.mute] confirm is "untrusted", but [policy] confirm_ops names',
    ),
    (
        '[policy.ops.mute]\n[policy.ops."action.mute"]',
        "2: [policy.ops.action.mute] is the same op as [policy.ops.mute].",
    ),
    ("[policy.ops.mute]\nschema = 'x'", "2: [policy.ops.mute] schema must be a table, not the text 'x'."),
    (
        "[policy.ops.note.schema]\ntype = 'object'\n[policy.ops.note.schema.properties.text]\ntype = 'texts'",
        "4: [policy.ops.note] schema is not a valid JSON Schema at 'properties.text.type': ",
    ),
    (
        "[policy.ops.mute]\nschema = { \"$ref\" = 'https://example.org/' }",
        "2: [policy.ops.mute] schema refers to 'https://example.org/'; only references inside",
    ),
    ("[policy.ops.mute]\nschema = { const = 1979-05-27 }", "2: [policy.ops.mute] schema is not a valid JSON Schema"),
]


@pytest.mark.parametrize(("text", "problem"), WRONG)
def test_what_is_wrong_is_named_with_its_line(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "config.toml")
    (found,) = caught.value.problems
    assert found.startswith(f"config.toml:{problem}")


def test_what_is_wrong_with_several_ops_is_reported_together() -> None:
    text = """
[policy]
enabled_ops = ["mute"]
[policy.ops.mute]
rate = "often"
[policy.ops.open_url]
schemes = ["file"]
confirm = "sometimes"
[policy.ops.ensure_url]
schemes = ["file"]
"""
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "config.toml")
    assert [problem.split(": ")[0] for problem in caught.value.problems] == [
        "config.toml:5",
        "config.toml:8",
        "config.toml:10",
    ]


def test_every_key_is_read_and_becomes_a_rule() -> None:
    text = """
[policy]
enabled_ops = ["input"]
disabled_ops = ["niri"]
confirm_ops = ["media"]
url_schemes = ["https", "mailto"]
[policy.ops.terminal]
enabled = true
from_llm = true
rate = "3/hour"
[policy.ops."action.open_url"]
schemes = ["https"]
confirm = "untrusted"
[policy.ops.open-note]
confirm = "never"
[policy.ops.open-note.schema]
required = ["text"]
"""
    config = parse_config(text, "config.toml").policy
    assert config.ops["terminal"] == OpConfig(enabled=True, from_llm=True, rate="3/hour")
    assert config.ops["open-note"] == OpConfig(confirm="never", schema={"required": ["text"]})
    rules = policy_rules(config)
    assert (rules.enabled_ops, rules.disabled_ops, rules.confirm_ops) == ({"input"}, {"niri"}, {"media"})
    assert rules.url_schemes == {"https", "mailto"}
    assert rules.ops["terminal"] == OpRule(enabled=True, from_llm=True, rate=Rate(3, "hour"))
    assert rules.ops["open_url"] == OpRule(schemes=frozenset({"https"}), confirm="untrusted")
    assert rules.ops["open-note"].validator is not None
    assert rules.schemes("ensure_url") == {"https", "mailto"}
    assert rules.schemes("open_url") == {"https"}


def test_nothing_said_is_the_default() -> None:
    assert policy_rules(Config().policy) == PolicyRules()
    assert policy_rules(parse_config("[policy.ops.mute]").policy).ops == {"mute": OpRule()}


NEVER = 'confirm = "never" changes nothing'
WARNED = [
    ("[policy.ops.terminal]\nenabled = true\nconfirm = 'never'", f"3: [policy.ops.terminal] {NEVER}: it always asks."),
    ("[policy.ops.open_url]\nconfirm = 'never'", f"2: [policy.ops.open_url] {NEVER}: it reaches outside"),
]


@pytest.mark.parametrize(("text", "warning"), WARNED)
def test_what_changes_nothing_is_a_warning(text: str, warning: str) -> None:
    (found,) = parse_config(text, "config.toml").warnings
    assert found.startswith(f"config.toml:{warning}")
    assert parse_config("[policy.ops.mute]\nconfirm = 'never'").warnings == ()


def test_a_warning_about_the_policy_does_not_hide_one_about_the_token(tmp_path: Any) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[policy.ops.input]\nconfirm = 'never'\n[socket]\ntoken = 'correct-horse-battery'\n")
    file.chmod(0o644)
    assert len(load_config(file).warnings) == 2


def test_what_config_and_policy_both_know_is_the_same() -> None:
    assert URL_OPS == builtin.URL_OPS
    assert COMMAND_OPS == builtin.OFF_BY_DEFAULT
    for text, accepted in (("1/second", True), ("9999/hour", True), ("0/hour", False), ("10000/hour", False)):
        assert _is_rate(text) == accepted
        config = f"[policy.ops.mute]\nrate = '{text}'"
        if accepted:
            assert parse_config(config).policy.ops["mute"].rate == text
        else:
            with pytest.raises(ConfigError):
                parse_config(config)


def _is_rate(text: str) -> bool:
    try:
        parse_rate(text)
    except ValueError:
        return False
    return True
