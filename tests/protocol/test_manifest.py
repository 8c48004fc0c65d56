from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utter_protocol.manifest import (
    ID_PATTERN,
    MAX_FILE,
    PERMISSIONS,
    Manifest,
    ManifestError,
    current_platform,
    expand_entrypoint,
    load_manifest,
    unknown_permissions,
    unmet_conditions,
)

if TYPE_CHECKING:
    from pathlib import Path

# The example of the protocol's public description, and every field that it does not use.
FULL = """\
name = "fake_rs"
version = "0.1.0"
kind = "action"
protocol = "1.0"
min_runner = "0.1.0"
max_protocol = "1.4"
abi = 1
description = "Opens addresses."
homepage = "https://example.org"
license = "MIT"

runtime = "subprocess"
transport = "stdio"
entrypoint = ["plugins/fake_rs/target/release/fake_rs"]

provides = ["action.open_url@1", "experimental/fake_rs@1"]
requires = ["context.live@1"]
permissions = ["network"]

platforms = ["linux-x86_64"]

[config_schema]
type = "object"

[settings]
level = 3
nested = { list = [1, 2.5, "x", true] }

[[models]]
name = "tiny"
url = "https://example.org/tiny.bin"
sha256 = "0000000000000000000000000000000000000000000000000000000000000000"
size = 75_000_000
"""

MINIMAL = """\
name = "ab"
version = "1.2.3"
kind = "bundle"
protocol = "1.0"
abi = 1
runtime = "subprocess"
transport = "stdio"
entrypoint = ["${PYTHON}", "-m", "utter_plugins.ab"]
"""


def write(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "utter-plugin.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def replaced(**changes: str) -> str:
    """The minimal manifest with other values, in TOML, for some fields."""
    lines = MINIMAL.splitlines()
    for name, value in changes.items():
        lines = [line for line in lines if not line.startswith(f"{name} =")] + [f"{name} = {value}"]
    return "\n".join(lines)


def manifest(tmp_path: Path, **changes: str) -> Manifest:
    return load_manifest(write(tmp_path, replaced(**changes)))


def test_reads_every_field(tmp_path: Path) -> None:
    found = load_manifest(write(tmp_path, FULL))
    assert (found.name, found.version, found.kind, found.protocol, found.abi) == (
        "fake_rs",
        "0.1.0",
        "action",
        "1.0",
        1,
    )
    assert (found.min_runner, found.max_protocol) == ("0.1.0", "1.4")
    assert (found.runtime, found.transport) == ("subprocess", "stdio")
    assert found.entrypoint == ["plugins/fake_rs/target/release/fake_rs"]
    assert found.provides == ["action.open_url@1", "experimental/fake_rs@1"]
    assert (found.requires, found.permissions, found.platforms) == (["context.live@1"], ["network"], ["linux-x86_64"])
    assert (found.description, found.homepage, found.license) == ("Opens addresses.", "https://example.org", "MIT")
    assert found.config_schema == {"type": "object"}
    assert found.settings == {"level": 3, "nested": {"list": [1, 2.5, "x", True]}}
    assert [(model.name, model.size) for model in found.models] == [("tiny", 75_000_000)]


def test_the_required_fields_are_enough(tmp_path: Path) -> None:
    found = load_manifest(write(tmp_path, MINIMAL))
    assert (found.provides, found.settings, found.min_runner) == ([], {}, "")


@pytest.mark.parametrize("name", ["name", "version", "kind", "protocol", "abi", "runtime", "transport", "entrypoint"])
def test_a_required_field_is_missed_by_name(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, re.sub(rf"(?m)^{name} = .*\n", "", MINIMAL))
    with pytest.raises(ManifestError, match=f"The field {name} is missing. It must be ") as caught:
        load_manifest(path)
    assert [problem.field for problem in caught.value.problems] == [name]
    assert str(caught.value).startswith(f"{path}:1: ")


BAD = [
    ("name", '"Upper"', 'name is "Upper", and it must be the plugin\'s id: 2 to 64 lower-case letters'),
    ("name", '"a"', 'name is "a", and it must be'),
    ("name", '"-ab"', 'name is "-ab"'),
    ("name", '"ab\\n"', "name is 'ab\\n'"),
    ("name", f'"{"a" * 65}"', f'name is "{"a" * 60}..." (65 characters)'),
    ("name", '"../etc"', 'name is "../etc"'),
    ("name", '""', "name is an empty string"),
    ("name", "3", "name is 3, and it must be"),
    ("version", '"1.0"', 'version is "1.0", and it must be the plugin\'s own semantic version'),
    ("version", '"01.0.0"', 'version is "01.0.0"'),
    ("version", '"1.0.0-01"', 'version is "1.0.0-01"'),
    ("kind", '"actions"', 'kind is "actions", and it must be one of stt, router, knowledge, llm'),
    ("protocol", "1.0", "protocol is 1.0, and it must be"),
    ("protocol", '"1"', 'protocol is "1"'),
    ("abi", '"1"', 'abi is "1", and it must be the ABI that the plugin speaks, a whole number from 1 on'),
    ("abi", "0", "abi is 0"),
    ("abi", "true", "abi is true"),
    ("abi", "1.0", "abi is 1.0"),
    ("runtime", '"docker"', 'runtime is "docker", and it must be one of subprocess, wasm, native'),
    ("runtime", '"native"', "The runtime native is refused: code inside the runner would share its memory"),
    ("transport", '"tcp"', 'transport is "tcp", and it must be one of stdio, connect, listen'),
    ("entrypoint", "[]", "entrypoint is an empty list, and it must be the program and its arguments"),
    ("entrypoint", '"run"', 'entrypoint is "run", and it must be the program'),
    ("entrypoint", '["run", ""]', "entrypoint[1] is an empty string, and entrypoint must be the program"),
    ("entrypoint", '["run", "a\\u0000b"]', "entrypoint[1] is 'a\\x00b'"),
    ("provides", '["a@1", "router.plan"]', "provides[1]: The capability 'router.plan' is malformed: the version"),
    ("requires", '["Router.plan@1"]', "requires[0]: The capability 'Router.plan@1' is malformed: the name"),
    ("requires", "[1]", "requires[0] is 1, and requires must be a list of at most 256 capabilities"),
    ("permissions", '["Network"]', 'permissions[0] is "Network", and permissions must be'),
    ("permissions", "{}", "permissions is a table, and it must be"),
    ("platforms", '["linux x86"]', 'platforms[0] is "linux x86"'),
    ("min_runner", '"newest"', 'min_runner is "newest", and it must be the oldest runner that will do'),
    ("max_protocol", '"1"', 'max_protocol is "1", and it must be the newest protocol version'),
    ("max_protocol", '"0.9"', "max_protocol is 0.9, which is older than protocol, 1.0."),
    ("description", '"two\\nlines"', "description is 'two\\nlines', and it must be one line"),
    ("settings", "[1]", "settings is a list of 1 items, and it must be a table"),
    ("settings", "{ when = 2024-01-01 }", "settings.when is a date, which JSON cannot express"),
    ("settings", "{ list = [1, nan] }", "settings.list[1] is nan, which JSON cannot express"),
    ("config_schema", '"schema.json"', 'config_schema is "schema.json", and it must be a table that is a JSON Schema'),
    ("models", '["tiny"]', 'models[0] is "tiny", and models must be a list of at most 64 tables [[models]]'),
    ("models", '[{ name = "x" }]', "The field models[0].url is missing. It must be an https address of"),
    ("provide", "[]", "There is no field provide. Did you mean provides?"),
    ("entry_point", "[]", "There is no field entry_point. Did you mean entrypoint?"),
    ("zzz", "1", "There is no field zzz. The known fields are name, version"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "complaint"), BAD)
def test_a_wrong_value_is_named_with_its_line_and_what_is_allowed(
    tmp_path: Path, name: str, value: str, complaint: str
) -> None:
    text = replaced(**{name: value})
    path = write(tmp_path, text)
    with pytest.raises(ManifestError) as caught:
        load_manifest(path)
    assert complaint in str(caught.value)
    line = next(n for n, line in enumerate(text.split("\n"), 1) if line.startswith(f"{name} ="))
    assert str(caught.value).startswith(f"{path}:{line}: ")


def test_every_problem_is_reported_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = FULL.replace('kind = "action"', 'kind = "acting"').replace("abi = 1\n", "")
    text = text.replace('sha256 = "0', 'sha256 = "g').replace("size = 75_000_000", "size = 0\nhash = 1")
    with pytest.raises(ManifestError) as caught:
        load_manifest(write(tmp_path, text))
    assert [(problem.line, problem.field) for problem in caught.value.problems] == [
        (1, "abi"),
        (3, "kind"),
        (31, "models[0].sha256"),
        (32, "models[0].size"),
        (33, "models[0].hash"),
    ]


@pytest.mark.parametrize(
    ("content", "line", "complaint"),
    [
        (b'name = "x"\nversion = \n', 2, "not valid TOML"),
        (b'name = "x\n', 1, "not valid TOML"),
        (b'name = """x\n\n', 3, "not valid TOML"),
        (b'name = "x"\n\nname = "y"\n', 3, "not valid TOML"),
        (b'name = "x"\nversion = "\xff"\n', 2, "not UTF-8"),
        (b"x = " + b"[" * 50_000, 1, "too deeply"),
        (MINIMAL.encode() + b"settings" + b".a" * 3_000 + b" = 1", 1, "too deeply"),
        (b"#" * (MAX_FILE + 1), 1, "larger than 65536 bytes"),
    ],
)
def test_a_file_that_is_no_manifest(tmp_path: Path, content: bytes, line: int, complaint: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(ManifestError, match=complaint) as caught:
        load_manifest(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")


def test_a_missing_file_and_a_directory_are_named(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"nowhere\.toml:1: .*No such file"):
        load_manifest(tmp_path / "nowhere.toml")
    with pytest.raises(ManifestError, match="Is a directory"):
        load_manifest(tmp_path)


@given(st.from_regex(ID_PATTERN, fullmatch=True))
def test_an_id_is_one_path_component(name: str) -> None:
    assert os.path.basename(name) == name  # noqa: PTH119 - the point is the plain string
    assert name not in {".", ".."}


# --- the entry point


def test_python_is_put_in_wherever_it_is_named(tmp_path: Path) -> None:
    found = manifest(tmp_path, entrypoint='["${PYTHON}", "--with=${PYTHON}", "${HOME}", "a/b"]')
    assert expand_entrypoint(found, "/opt/py/bin/python", "/p") == [
        "/opt/py/bin/python",
        "--with=/opt/py/bin/python",
        "${HOME}",
        "a/b",
    ]


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("node", "node"),
        ("./run.sh", "/plugins/x/run.sh"),
        ("target/release/x", "/plugins/x/target/release/x"),
        ("/usr/bin/env", "/usr/bin/env"),
        ("../shared/run", "/plugins/x/../shared/run"),
    ],
)
def test_a_relative_program_lies_beside_the_manifest(tmp_path: Path, program: str, expected: str) -> None:
    found = manifest(tmp_path, entrypoint=f'["{program}", "./data"]')
    assert expand_entrypoint(found, "/py", "/plugins/x") == [expected, "./data"]


def test_a_relative_directory_is_taken_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = manifest(tmp_path, entrypoint='["./run"]')
    assert expand_entrypoint(found, "/py", "plugins/x") == [f"{tmp_path}/plugins/x/run"]


def test_a_module_is_started_by_its_host(tmp_path: Path) -> None:
    found = manifest(tmp_path, runtime='"wasm"', entrypoint='["x.wasm", "${PYTHON}"]')
    host = ["/py", "-P", "-m", "utter_runner.wasm"]
    assert expand_entrypoint(found, "/py", "/p") == [*host, "--", "/p/x.wasm", "/py"]
    assert expand_entrypoint(found, "/py", "/p", ["--env", "A"]) == [*host, "--env", "A", "--", "/p/x.wasm", "/py"]


# --- conditions


def unmet(found: Manifest, **here: str) -> list[str]:
    return unmet_conditions(found, **{"runner": "0.1.0", "protocol": "1.0", "platform": "linux-x86_64", **here})


def test_a_plain_manifest_runs_here(tmp_path: Path) -> None:
    assert unmet(manifest(tmp_path)) == []


def test_a_module_has_no_sockets(tmp_path: Path) -> None:
    assert unmet(manifest(tmp_path, runtime='"wasm"')) == []
    for transport in ("connect", "listen"):
        with pytest.raises(ManifestError, match=f"The transport is {transport}, and a module of the runtime wasm has"):
            manifest(tmp_path, runtime='"wasm"', transport=f'"{transport}"')


@pytest.mark.parametrize(
    ("platforms", "here", "runs"),
    [
        ("[]", "linux-x86_64", True),
        ('["linux-x86_64"]', "linux-x86_64", True),
        ('["linux"]', "linux-aarch64", True),
        ('["linux-aarch64", "linux-x86_64"]', "linux-x86_64", True),
        ('["linux-aarch64"]', "linux-x86_64", False),
        ('["x86_64"]', "linux-x86_64", False),
        ('["freebsd"]', "linux-x86_64", False),
    ],
)
def test_platforms(tmp_path: Path, platforms: str, here: str, runs: bool) -> None:
    reasons = unmet(manifest(tmp_path, platforms=platforms), platform=here)
    assert (reasons == []) is runs
    assert all(here in reason for reason in reasons)


@pytest.mark.parametrize(
    ("min_runner", "runner", "runs"),
    [
        ("", "0.1.0", True),
        ("0.1.0", "0.1.0", True),
        ("0.1", "0.1.0", True),
        ("0.2", "0.1.9", False),
        ("0.10.0", "0.9.0", False),
        ("0.9.0", "0.10.0", True),
        ("0.2.0", "0.2.0.dev3", True),
        ("0.2.1", "0.2.0rc1", False),
        ("1.0", "2", True),
    ],
)
def test_min_runner(tmp_path: Path, min_runner: str, runner: str, runs: bool) -> None:
    reasons = unmet(manifest(tmp_path, min_runner=f'"{min_runner}"'), runner=runner)
    assert (reasons == []) is runs
    assert all(min_runner in reason and runner in reason for reason in reasons)


@pytest.mark.parametrize(
    ("max_protocol", "protocol", "runs"),
    [("", "1.9", True), ("1.0", "1.2", True), ("1.0", "1.3", False), ("1.0", "2.0", False), ("1.7", "1.0", True)],
)
def test_max_protocol(tmp_path: Path, max_protocol: str, protocol: str, runs: bool) -> None:
    reasons = unmet(manifest(tmp_path, max_protocol=f'"{max_protocol}"'), protocol=protocol)
    assert (reasons == []) is runs
    assert all(max_protocol in reason and protocol in reason for reason in reasons)


def test_every_reason_is_given(tmp_path: Path) -> None:
    found = manifest(tmp_path, platforms='["plan9"]', min_runner='"9.0"', max_protocol='"1.0"')
    assert len(unmet(found, protocol="1.9")) == 3


def test_a_runner_version_that_is_none_is_a_programming_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'unknown' does not start with"):
        unmet(manifest(tmp_path, min_runner='"1.0"'), runner="unknown")


def test_this_machine_has_a_name() -> None:
    assert re.fullmatch(r"linux-[a-z0-9_]+", current_platform())


def test_unknown_permissions_are_named_once() -> None:
    assert unknown_permissions(list(PERMISSIONS)) == []
    warnings = unknown_permissions(["network", "teleport", "teleport"])
    assert len(warnings) == 1
    assert "'teleport'" in warnings[0]
    assert all(known in warnings[0] for known in PERMISSIONS)
