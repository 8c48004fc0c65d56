from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from utter_protocol.manifest import Manifest, Model

REPOSITORY = Path(__file__).parents[2]
SCHEMA = json.loads((REPOSITORY / "protocol/plugin.schema.json").read_text())
VALIDATOR = jsonschema_rs.validator_for(SCHEMA)

GOOD: dict[str, Any] = {
    "name": "fake_rs",
    "version": "0.1.0-rc.1+build.5",
    "kind": "action",
    "protocol": "1.0",
    "abi": 1,
    "runtime": "subprocess",
    "transport": "stdio",
    "entrypoint": ["bin/fake_rs", "--flag"],
    "description": "Opens addresses.",
    "homepage": "https://example.org",
    "license": "MIT",
    "min_runner": "0.1.0",
    "max_protocol": "1.4",
    "provides": ["action.open_url@1", "experimental/Fake@1"],
    "requires": ["context.live@1"],
    "permissions": ["network", "files.read"],
    "platforms": ["linux-x86_64", "linux"],
    "config_schema": {"type": "object"},
    "settings": {"level": 3},
    "models": [{"name": "tiny", "url": "https://example.org/x", "sha256": "0" * 64, "size": 1}],
}


def struct_accepts(document: Any) -> bool:
    try:
        msgspec.convert(document, Manifest)
    except msgspec.ValidationError:
        return False
    return True


def test_the_committed_schema_is_current() -> None:
    script = REPOSITORY / "scripts/generate_schema.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_stale_schema_is_reported(tmp_path: Path) -> None:
    # The script writes beside itself, so a copy of it in another tree leaves the repository alone.
    (tmp_path / "scripts").mkdir()
    (tmp_path / "protocol").mkdir()
    script = tmp_path / "scripts/generate_schema.py"
    script.write_bytes((REPOSITORY / "scripts/generate_schema.py").read_bytes())
    schema = tmp_path / "protocol/plugin.schema.json"

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, check=False)

    missing = run("--check")
    assert missing.returncode == 1
    assert f"{schema} is out of date" in missing.stderr
    assert run().returncode == 0
    assert run("--check").returncode == 0
    schema.write_text(schema.read_text().replace("stdio", "pipes"))
    assert run("--check").returncode == 1


def test_the_schema_is_itself_valid() -> None:
    jsonschema_rs.meta.validate(SCHEMA)


def test_the_schema_names_every_field_with_a_description() -> None:
    assert set(SCHEMA["properties"]) == {field.name for field in msgspec.structs.fields(Manifest)}
    assert set(SCHEMA["$defs"]["Model"]["properties"]) == {field.name for field in msgspec.structs.fields(Model)}
    assert all(field["description"] for field in SCHEMA["properties"].values())


def test_both_accept_the_good_document() -> None:
    assert struct_accepts(GOOD)
    assert VALIDATOR.is_valid(GOOD)


@pytest.mark.parametrize("field", sorted(GOOD))
def test_both_agree_on_what_may_be_absent(field: str) -> None:
    document = {name: value for name, value in GOOD.items() if name != field}
    accepted = field not in {"name", "version", "kind", "protocol", "abi", "runtime", "transport", "entrypoint"}
    assert struct_accepts(document) is accepted
    assert VALIDATOR.is_valid(document) is accepted


# A final newline is where Python's regular expressions and those of JSON Schema part.
texts = st.one_of(
    st.text(max_size=8),
    st.sampled_from([value for value in GOOD.values() if isinstance(value, str)]).flatmap(
        lambda text: st.sampled_from([text, text + "\n", "\n" + text, text + "\x00", text.upper(), text[:-1], text * 2])
    ),
    st.from_regex(r"[a-z0-9./@_-]{0,12}\n?", fullmatch=True),
    st.sampled_from(["", "a" * 64, "a" * 65, "a" * 500, "a" * 501, "1.0", "1.00", "0.1", "native", "wasm", "listen"]),
    st.sampled_from(["a@1", "a.b@0", "a@1\n", "a@999999", "a@1000000", "experimental/X@1", f"{'a' * 127}@1"]),
)
# JSON Schema takes 1.0 for an integer and TOML does not: a fraction keeps both at the same question.
scalars = st.one_of(
    texts, st.integers(-(2**40), 2**40), st.booleans(), st.none(), st.floats(0.25, 99.5).filter(lambda x: x % 1 != 0)
)
models = st.fixed_dictionaries(
    {},
    optional={
        "name": texts,
        "url": st.one_of(st.just("https://a.b/c"), texts),
        "sha256": st.sampled_from(["0" * 64, "F" * 64, "0" * 63, "0" * 64 + "\n"]),
        "size": st.integers(-1, 2),
        "extra": st.just(1),
    },
)
values = st.one_of(
    scalars,
    st.lists(st.one_of(scalars, models), max_size=4),
    st.lists(texts, max_size=4),
    st.sampled_from([["a@1"] * 256, ["a@1"] * 257, ["x"] * 64, ["x"] * 65]),
    st.dictionaries(st.text(max_size=3), scalars, max_size=3),
)
fields = st.one_of(st.sampled_from(sorted(GOOD)), st.text(max_size=4))


@given(st.dictionaries(fields, values, max_size=2))
def test_schema_and_struct_accept_the_same_documents(changes: dict[str, Any]) -> None:
    document = {**GOOD, **changes}
    assert VALIDATOR.is_valid(document) == struct_accepts(document)


@given(st.sampled_from([name for name, value in GOOD.items() if isinstance(value, str)]), texts)
def test_schema_and_struct_agree_on_each_text(name: str, text: str) -> None:
    document = {**GOOD, name: text}
    assert VALIDATOR.is_valid(document) == struct_accepts(document)


@given(st.one_of(scalars, st.lists(scalars, max_size=2)))
def test_both_refuse_what_is_no_table(document: Any) -> None:
    assert not VALIDATOR.is_valid(document)
    assert not struct_accepts(document)
