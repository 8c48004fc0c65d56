from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utter_protocol import PROTOCOL
from utter_protocol.capabilities import (
    CAPABILITY_PATTERN,
    RUNNER_BUILTIN,
    Capability,
    CapabilityError,
    Deprecation,
    Entry,
    Registry,
    RegistryError,
    load_registry,
    parse_capability,
)

REPOSITORY = Path(__file__).parents[2]


def entry(text: str, *satisfied_by: str, deprecated: Deprecation | None = None) -> Entry:
    name, version = text.split("@")
    return Entry(name=name, version=int(version), summary="x", satisfied_by=satisfied_by, deprecated=deprecated)


@pytest.mark.parametrize(
    ("text", "name", "version"),
    [
        ("router.plan@1", "router.plan", 1),
        ("audio.pcm_f32le@12", "audio.pcm_f32le", 12),
        ("experimental/fake_rs@1", "experimental/fake_rs", 1),
        ("experimental/My.Thing-2@999999", "experimental/My.Thing-2", 999999),
        ("alone@1", "alone", 1),
        ("a.b-c.d_e@3", "a.b-c.d_e", 3),
    ],
)
def test_parses_name_and_version(text: str, name: str, version: int) -> None:
    assert parse_capability(text) == Capability(name, version)
    assert str(parse_capability(text)) == text
    assert parse_capability(text).experimental == text.startswith("experimental/")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "version is missing"),
        ("router.plan", "version is missing"),
        ("router.plan@", "the version '' is not"),
        ("router.plan@0", "the version '0' is not"),
        ("router.plan@01", "the version '01' is not"),
        ("router.plan@-1", "the version '-1' is not"),
        ("router.plan@1.0", "the version '1.0' is not"),
        ("router.plan@1@2", "the version '1@2' is not"),
        ("router.plan@1000000", "the version '1000000' is not"),
        ("router.plan@1\n", "the version '1\\n' is not"),
        ("router.plan@\u0661", "the version '\u0661' is not"),
        ("@1", "the name '' is not"),
        ("Router.plan@1", "the name 'Router.plan' is not"),
        ("router..plan@1", "the name 'router..plan' is not"),
        (".plan@1", "the name '.plan' is not"),
        ("router.@1", "the name 'router.' is not"),
        ("router plan@1", "the name 'router plan' is not"),
        ("router/plan@1", "the name 'router/plan' is not"),
        ("perception.*@1", "wildcard"),
        ("experimental/@1", "after experimental/"),
        ("experimental/a/b@1", "after experimental/"),
        ("experimental/ä@1", "after experimental/"),
        ("a" * 130 + "@1", "132 characters, and at most 128"),
    ],
)
def test_a_malformed_string_is_named_with_what_is_wrong(text: str, complaint: str) -> None:
    with pytest.raises(CapabilityError) as caught:
        parse_capability(text)
    assert complaint in str(caught.value)
    assert repr(text[:60])[1:-1] in str(caught.value)
    assert len(str(caught.value)) < 300


@given(st.from_regex(CAPABILITY_PATTERN, fullmatch=True).filter(lambda text: len(text) <= 128))
def test_the_pattern_and_the_parser_agree(text: str) -> None:
    assert str(parse_capability(text)) == text


@given(st.text(max_size=200))
def test_any_text_parses_or_is_refused_by_name(text: str) -> None:
    try:
        assert str(parse_capability(text)) == text
    except CapabilityError as error:
        assert "malformed" in str(error)  # noqa: PT017 - both outcomes are checked here


# --- the registry that ships


def test_the_registry_exists_once() -> None:
    packaged = REPOSITORY / "protocol/utter_protocol/capabilities.json"
    assert packaged.resolve() == REPOSITORY / "protocol/capabilities.json"


def test_the_registry_is_of_the_current_protocol() -> None:
    assert load_registry().protocols[-1] == PROTOCOL


def test_the_runners_own_capabilities_are_in_the_registry() -> None:
    assert {text for text in RUNNER_BUILTIN if load_registry().find(text)} == RUNNER_BUILTIN


def test_every_entry_says_what_it_is() -> None:
    for known in load_registry().entries:
        assert known.summary.endswith("."), str(known)


@pytest.mark.parametrize(
    "text",
    [
        "router.plan@1", "router.hints@1", "knowledge.catalog@1", "stt.transcribe@1", "stt.partial@1",
        "action.invoke@1",
        "action.open_url@1", "action.ensure_url@1", "action.launch_app@1", "action.media@1", "action.volume@1",
        "action.terminal@1", "action.input@1", "action.niri@1", "tts.speak@1", "llm.complete@1", "llm.choose@1",
        "media.hold@1", "context.snapshot@1", "context.live@1", "perception.screenshot@1", "perception.browser.tabs@1",
        "input.ptt@1", "ui.render@1", "audio.pcm_f32le@1", "host.audio.ringbuffer@1", "host.fd.pass@1", "fs.tmp@1",
        "experimental/fake_rs@1", "experimental/Anything@77",
    ],
)  # fmt: skip
def test_known_capabilities(text: str) -> None:
    findings = load_registry().classify([text])
    assert findings.known == (text,)
    assert findings.warnings == ()


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("router.plam@1", "nearest known one is router.plan@1"),
        ("router.plan@2", "nearest known one is router.plan@1"),
        ("perception.ocr@2", ""),
        ("perception@1", ""),
        ("weather.today@1", ""),
    ],
)
def test_an_unknown_capability_is_a_warning_with_the_nearest_known(text: str, hint: str) -> None:
    findings = load_registry().classify([text, "router.plan@1", text])
    assert findings.unknown == (text,)
    assert findings.known == ("router.plan@1",)
    assert len(findings.warnings) == 1
    assert text in findings.warnings[0]
    assert hint in findings.warnings[0]


def test_a_malformed_declaration_is_a_warning() -> None:
    findings = load_registry().classify(["router.plan"])
    assert findings.malformed == ("router.plan",)
    assert "version is missing" in findings.warnings[0]


def test_a_plugin_that_declares_too_many_gets_one_warning() -> None:
    findings = load_registry().classify(f"experimental/n{n}@1" for n in range(10_000))
    assert len(findings.known) == 256
    assert findings.warnings == ("The plugin declares 10000 capabilities: those after the first 256 are ignored.",)


# --- deprecation, in a made-up registry of later versions


OLD = Deprecation(since="1.1", replacement="router.plan@2")
GONE = Deprecation(since="1.1", replacement="router.plan@2", removed="1.3")
PUBLISHED = ("1.0", "1.1", "1.2", "1.3")


@pytest.mark.parametrize(
    ("deprecation", "protocol", "group", "said"),
    [
        (OLD, "1.0", "known", []),
        (OLD, "1.1", "deprecated", ["since protocol 1.1", "2 protocol versions later", "use router.plan@2"]),
        (OLD, "1.3", "deprecated", ["since protocol 1.1", "use router.plan@2"]),
        (GONE, "1.2", "deprecated", ["since protocol 1.1", "use router.plan@2"]),
        (GONE, "1.3", "unknown", ["removed in protocol 1.3", "use router.plan@2"]),
    ],
)
def test_deprecated_and_removed(deprecation: Deprecation, protocol: str, group: str, said: list[str]) -> None:
    registry = Registry([entry("router.plan@1", deprecated=deprecation), entry("router.plan@2")], PUBLISHED)
    findings = registry.classify(["router.plan@1"], protocol)
    assert getattr(findings, group) == ("router.plan@1",)
    assert len(findings.warnings) == bool(said)
    assert all(part in findings.warnings[0] for part in said)


@pytest.mark.parametrize("removed", ["1.1", "1.2"])
def test_a_removal_that_comes_too_early_is_refused(removed: str) -> None:
    early = Deprecation(since="1.1", replacement="router.plan@2", removed=removed)
    with pytest.raises(RegistryError, match=r"router\.plan@1 .* must be kept for 2 protocol versions"):
        Registry([entry("router.plan@1", deprecated=early), entry("router.plan@2")], PUBLISHED)


def test_removal_counts_published_versions_across_a_major() -> None:
    registry = Registry([], ["1.8", "1.9", "1.10", "2.0"])
    assert registry.removal_allowed("1.8", "1.10")
    assert registry.removal_allowed("1.9", "2.0")
    assert not registry.removal_allowed("1.10", "2.0")


@pytest.mark.parametrize(
    ("capabilities", "complaint"),
    [
        ([{"name": "a.b", "version": 1, "summary": "x"}] * 2, "lists a.b@1 twice"),
        ([{"name": "A.b", "version": 1, "summary": "x"}], "A.b@1"),
        ([{"name": "a.b", "version": 0, "summary": "x"}], "a.b@0"),
        ([{"name": "a.b", "version": 1, "summary": "x", "satisfied_by": ["c"]}], "a.b@1"),
        ([{"name": "a.b", "version": 1, "summary": "x", "note": ""}], "note"),
        ([{"name": "a.b", "version": 1}], "summary"),
        (
            [{"name": "a.b", "version": 1, "summary": "x", "deprecated": {"since": "1.0", "replacement": "c.d@1"}}],
            "lacks",
        ),
        (
            [{"name": "a.b", "version": 1, "summary": "x", "deprecated": {"since": "1.7", "replacement": "a.b@1"}}],
            "deprecated.since '1.7'",
        ),
    ],
)
def test_a_registry_that_contradicts_itself_names_the_entry(
    capabilities: list[dict[str, object]], complaint: str
) -> None:
    data = json.dumps({"protocols": ["1.0"], "capabilities": capabilities}).encode()
    with pytest.raises(RegistryError) as caught:
        Registry.from_json(data)
    assert complaint in str(caught.value)


def test_a_registry_that_is_not_json_is_refused() -> None:
    with pytest.raises(RegistryError, match="cannot be read"):
        Registry.from_json(b"{")


# --- who satisfies whom


RELATED = Registry([entry("a.x@1", "a.x@2", "b.y@1"), entry("a.x@2"), entry("b.y@1")])


@pytest.mark.parametrize(
    ("provided", "required", "expected"),
    [
        ("a.x@1", "a.x@1", True),
        ("a.x@2", "a.x@1", True),
        ("b.y@1", "a.x@1", True),
        ("a.x@1", "a.x@2", False),
        ("a.x@3", "a.x@1", False),
        ("unknown.z@4", "unknown.z@4", True),
        ("unknown.z@4", "unknown.z@3", False),
        ("experimental/Q@1", "experimental/Q@1", True),
        ("malformed", "malformed", False),
        ("", "", False),
    ],
)
def test_satisfies(provided: str, required: str, expected: bool) -> None:
    assert RELATED.satisfies(provided, required) is expected


def test_a_newer_version_does_not_satisfy_an_older_one_unless_the_registry_says_so() -> None:
    assert not load_registry().satisfies("router.plan@2", "router.plan@1")


def test_missing_looks_at_the_runner_the_plugin_and_the_admitted() -> None:
    requires = ["fs.tmp@1", "a.x@1", "c.own@1", "d.admitted@1", "e.none@1", "broken", "e.none@1"]
    found = RELATED.missing(requires, ["c.own@1", "broken"], iter(["a.x@2", "d.admitted@1"]))
    assert found == ["e.none@1", "broken"]
    assert RELATED.missing(["fs.tmp@1"], [], [], runner_builtin=()) == ["fs.tmp@1"]


def test_providers_names_who_could_help() -> None:
    plugins = {"one": ["a.x@2"], "two": ["c.c@1"], "three": ["c.c@1", "b.y@1"]}
    assert RELATED.providers("a.x@1", plugins) == ["one", "three"]


@given(
    st.lists(st.sampled_from(["a.x@1", "a.x@2", "b.y@1", "c.c@1"])),
    st.lists(st.sampled_from(["a.x@1", "a.x@2", "b.y@1", "c.c@1"])),
    st.lists(st.sampled_from(["a.x@1", "a.x@2", "b.y@1", "c.c@1"])),
)
def test_missing_is_exactly_what_nothing_satisfies(requires: list[str], own: list[str], admitted: list[str]) -> None:
    found = RELATED.missing(requires, own, admitted)
    for required in requires:
        covered = any(RELATED.satisfies(other, required) for other in own + admitted)
        assert (required in found) == (not covered)
    assert len(found) == len(set(found))
