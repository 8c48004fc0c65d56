"""From config entry and manifest to what is run."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import pytest

import utter_plugins
from utter_protocol import packages
from utter_protocol.manifest import current_platform
from utter_protocol.packages import MANIFEST_NAME, bundled_directory
from utter_runner.config import PluginConfig, parse_config
from utter_runner.supervision.resolve import ResolveError, resolve
from utter_runner.supervision.spec import Origin, PluginSpec, SettingsSchema

MANIFEST = """
name = "timer"
version = "1.2.0"
kind = "action"
protocol = "1.0"
abi = 1
runtime = "subprocess"
transport = "stdio"
entrypoint = ["${PYTHON}", "-m", "timer", "--python=${PYTHON}"]
provides = ["action.invoke@1", "experimental/Timer@1"]
requires = ["tts.speak@1"]
permissions = ["network", "gpu"]

[settings]
ring_seconds = 20
voice = { name = "a", pitch = 1 }
"""


def package(directory: Path, text: str = MANIFEST, **changes: str) -> Path:
    """A plugin's directory; `changes` replace lines of the manifest by key."""
    lines = []
    for line in text.splitlines():
        key = line.partition(" = ")[0]
        lines.append(f"{key} = {changes.pop(key)}" if key in changes else line)
    top = [f"{key} = {value}" for key, value in changes.items()]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / MANIFEST_NAME).write_text("\n".join([*top, *lines]))
    return directory


def entry(**fields: Any) -> PluginConfig:
    return PluginConfig(**{"id": "timer", **fields})


def refusal(config: PluginConfig, *plugin_dirs: str) -> str:
    with pytest.raises(ResolveError) as error:
        resolve(config, plugin_dirs)
    said = str(error.value)
    assert said.startswith(f"Plugin {config.id}: ")
    return said


def text_digest(directory: Path) -> str:
    return hashlib.sha256((directory / MANIFEST_NAME).read_bytes()).hexdigest()


# ---- what the manifest says, and what the config says


def test_a_manifest_alone_is_enough(tmp_path: Path) -> None:
    directory = package(tmp_path / "timer")
    assert resolve(entry(manifest=str(directory / MANIFEST_NAME)), []) == PluginSpec(
        id="timer",
        argv=(sys.executable, "-m", "timer", f"--python={sys.executable}"),
        kind="action",
        version="1.2.0",
        cwd=str(directory),
        package=str(directory),
        made_of=Origin(manifest=str(directory / MANIFEST_NAME), text_digest=text_digest(directory)),
        provides=("action.invoke@1", "experimental/Timer@1"),
        requires=("tts.speak@1",),
        permissions=("network", "gpu"),
        settings={"ring_seconds": 20, "voice": {"name": "a", "pitch": 1}},
    )


def test_an_entrypoint_alone_is_enough() -> None:
    made_of = Origin(command=("timer", "-x"))
    assert resolve(entry(entrypoint=["timer", "-x"]), []) == PluginSpec(
        id="timer", argv=("timer", "-x"), made_of=made_of
    )


def test_single_values_of_the_config_replace_and_lists_are_united(tmp_path: Path) -> None:
    config = entry(
        manifest=str(package(tmp_path / "timer")),
        kind="bundle",
        entrypoint=["${PYTHON}", "other.py", "--with=${PYTHON}"],
        provides=["experimental/Timer@1", "experimental/More@2"],
        requires=["stt.transcribe@1", "tts.speak@1"],
        permissions=["gpu", "microphone"],
        restart="never",
        env={"A": "1"},
        pass_env=["DISPLAY"],
        cwd=str(tmp_path),
        settings={"voice": {"name": "b"}, "new": [1]},
    )
    spec = resolve(config, [])
    assert spec == PluginSpec(
        id="timer",
        argv=(sys.executable, "other.py", f"--with={sys.executable}"),
        kind="bundle",
        version="1.2.0",
        package=str(tmp_path / "timer"),
        made_of=Origin(
            manifest=str(tmp_path / "timer" / MANIFEST_NAME),
            text_digest=text_digest(tmp_path / "timer"),
            command=("${PYTHON}", "other.py", "--with=${PYTHON}"),
            cwd=str(tmp_path),
        ),
        cwd=str(tmp_path),
        env={"A": "1"},
        pass_env=("DISPLAY",),
        provides=("action.invoke@1", "experimental/Timer@1", "experimental/More@2"),
        requires=("tts.speak@1", "stt.transcribe@1"),
        permissions=("network", "gpu", "microphone"),
        restart="never",
        # Key by key: a table in the config replaces the manifest's as a whole.
        settings={"ring_seconds": 20, "voice": {"name": "b"}, "new": [1]},
    )


def test_a_manifest_is_found_by_its_directory_too(tmp_path: Path) -> None:
    directory = package(tmp_path / "anywhere")
    assert resolve(entry(manifest=str(directory)), []).cwd == str(directory)


def test_plugin_directories_are_searched_in_order(tmp_path: Path) -> None:
    package(tmp_path / "first" / "other")
    second, third = package(tmp_path / "second" / "timer"), package(tmp_path / "third" / "timer")
    directories = [str(tmp_path / name) for name in ("nowhere", "first", "second", "third")]
    assert resolve(entry(), directories).cwd == str(second)
    assert resolve(entry(), directories[::-1]).cwd == str(third)


def test_with_an_entrypoint_no_manifest_is_looked_for(tmp_path: Path) -> None:
    package(tmp_path / "timer")
    spec = resolve(entry(entrypoint=["mine"]), [str(tmp_path)])
    assert (spec.argv, spec.cwd, spec.provides) == (("mine",), None, ())


# ---- what ships with the runner


def test_the_shipped_plugins_are_found_by_id() -> None:
    directory = bundled_directory()
    assert directory == Path(utter_plugins.__path__[0])
    names = sorted(path.parent.name for path in directory.glob(f"*/{MANIFEST_NAME}"))
    assert names
    for name in names:
        spec = resolve(PluginConfig(id=name), [])
        assert (spec.argv[0], *spec.argv[-2:]) == (sys.executable, "-m", f"utter_plugins.{name}")
        assert spec.cwd == str(directory / name)
        assert spec.provides


def test_ones_own_comes_before_the_shipped_one(tmp_path: Path) -> None:
    mine = package(tmp_path / "espeak", name='"espeak"')
    assert resolve(PluginConfig(id="espeak"), [str(tmp_path)]).cwd == str(mine)


def test_without_the_shipped_plugins_nothing_of_them_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "find_spec", lambda _name: None)
    assert bundled_directory() is None
    assert "no plugin of that id ships with the runner or lies in no directory." in refusal(PluginConfig(id="espeak"))


@pytest.mark.parametrize("name", ["nobody", "__init__.py", "..", "x/../espeak", "espeak\n"])
def test_an_id_that_nobody_has(name: str) -> None:
    said = refusal(PluginConfig(id=name), "/nonexistent")
    assert "no entrypoint and no manifest" in said or "is of a plugin named" in said


@pytest.mark.parametrize("name", ["../espeak", "a/b", ".", "..", "espeak\n", "", "a"])
def test_an_id_that_would_be_a_path_is_no_id(name: str) -> None:
    from utter_runner.config import ConfigError  # noqa: PLC0415 - here alone

    text = '[[plugin]]\nid = "{}"\n'.format(name.replace("\n", "\\n"))
    with pytest.raises(ConfigError, match="id"):
        parse_config(text)


# ---- what is not run


def test_native_is_refused_with_the_reason_wherever_it_is_said(tmp_path: Path) -> None:
    for config in (
        entry(runtime="native", entrypoint=["x"]),
        entry(runtime="native", manifest=str(package(tmp_path / "timer"))),
        entry(manifest=str(package(tmp_path / "native", runtime='"native"'))),
    ):
        said = refusal(config)
        assert "native" in said
        assert "would share its memory" in said
        assert "subprocess" in said


HOST = (sys.executable, "-P", "-m", "utter_runner.wasm")


def test_a_module_is_run_by_a_host_of_its_own(tmp_path: Path) -> None:
    directory = str(package(tmp_path / "timer", runtime='"wasm"', entrypoint='["timer.wasm", "-v"]'))
    spec = resolve(entry(manifest=directory), [])
    # A module lies beside its manifest, whether or not it is written with a slash, and wherever it runs.
    assert (spec.argv, spec.cwd) == ((*HOST, "--", f"{directory}/timer.wasm", "-v"), directory)
    assert resolve(entry(manifest=directory, cwd="/srv"), []).argv == spec.argv
    # It sees the variables that the config names and no others; their values are not for everybody to read.
    config = entry(manifest=directory, env={"A": "1", "B": "2"}, pass_env=["LANG", "A"], memory_mib=64)
    given = ("--env", "A", "--env", "B", "--env", "LANG", "--memory-mib", "64", "--")
    assert resolve(config, []).argv == (*HOST, *given, f"{directory}/timer.wasm", "-v")
    # The config may say all of it.
    config = entry(runtime="wasm", entrypoint=["x.wasm"], cwd=str(tmp_path))
    assert resolve(config, []).argv == (*HOST, "--", str(tmp_path / "x.wasm"))
    assert "relative to nothing" in refusal(entry(runtime="wasm", entrypoint=["x.wasm"]))
    assert "no entrypoint and no manifest" in refusal(entry(runtime="wasm"))
    # Or something else.
    spec = resolve(entry(manifest=directory, runtime="subprocess", entrypoint=["wasmtime", "timer.wasm"]), [])
    assert (spec.argv, spec.cwd) == (("wasmtime", "timer.wasm"), directory)


def test_a_module_has_no_sockets(tmp_path: Path) -> None:
    directory = str(package(tmp_path / "timer", runtime='"wasm"', entrypoint='["timer.wasm"]'))
    for transport in ("connect", "listen"):
        assert transport in refusal(entry(manifest=directory, transport=transport))
        manifest = package(tmp_path / transport, runtime='"wasm"', transport=f'"{transport}"')
        assert f"{manifest / MANIFEST_NAME}:8: The transport is {transport}" in refusal(entry(manifest=str(manifest)))


def test_without_wasmtime_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = str(package(tmp_path / "timer", runtime='"wasm"', entrypoint='["timer.wasm"]'))
    monkeypatch.setattr(packages, "find_spec", lambda _name: None)
    assert "pip install utter-runner[wasm]" in refusal(entry(manifest=directory))


def test_memory_is_bounded_where_it_can_be(tmp_path: Path) -> None:
    directory = str(package(tmp_path / "timer"))
    assert "memory_mib" in refusal(entry(manifest=directory, memory_mib=64))


@pytest.mark.parametrize("transport", ["connect", "listen"])
def test_other_transports_have_a_socket(tmp_path: Path, transport: Any) -> None:
    directory = str(package(tmp_path / "timer", transport=f'"{transport}"'))
    for config in (entry(manifest=directory), entry(transport=transport, entrypoint=["x"])):
        spec = resolve(config, [], environ={"XDG_RUNTIME_DIR": str(tmp_path)})
        assert (spec.transport, spec.socket_path) == (transport, str(tmp_path / "utter" / "plugins" / "timer.sock"))
    spec = resolve(entry(manifest=directory, transport="stdio"), [])
    assert (spec.transport, spec.socket_path) == ("stdio", "")


def test_conditions_of_the_manifest_are_all_named(tmp_path: Path) -> None:
    changes = {"platforms": '["plan9", "linux-vax"]', "min_runner": '"999.0"'}
    said = refusal(entry(manifest=str(package(tmp_path / "timer", **changes))))
    assert "plan9, linux-vax" in said
    assert current_platform() in said
    assert "utter-runner 999.0 or newer" in said
    fits = package(tmp_path / "fits", platforms='["linux"]', min_runner='"0.1"', max_protocol='"1.0"')
    assert resolve(entry(manifest=str(fits)), []).version == "1.2.0"


def test_conditions_hold_whatever_else_the_config_says(tmp_path: Path) -> None:
    for changes, reason in (
        ({"platforms": '["plan9"]'}, "The plugin runs on plan9"),
        ({"min_runner": '"999.0"'}, "utter-runner 999.0 or newer"),
        ({"max_protocol": '"0.9"', "protocol": '"0.9"'}, "made for protocol 0.9 at most"),
    ):
        place = package(tmp_path / str(len(reason)) / "timer", **changes)
        module = {"runtime": "wasm", "entrypoint": ["x.wasm"]}
        for config, directories in (
            (entry(), [str(place.parent)]),
            (entry(manifest=str(place)), []),
            (entry(manifest=str(place), entrypoint=["other", "program"]), []),
            (entry(manifest=str(place), **module), []),
        ):
            assert reason in refusal(config, *directories)


def test_a_package_that_others_could_change_is_refused(tmp_path: Path) -> None:
    place = package(tmp_path / "timer")
    place.chmod(0o777)
    for config, directories in (
        (entry(), [str(tmp_path)]),
        (entry(manifest=str(place)), []),
        (entry(manifest=str(place), entrypoint=["other"]), []),
    ):
        assert f"{place} can be changed by every user" in refusal(config, *directories)


def test_where_was_looked_is_said(tmp_path: Path) -> None:
    said = refusal(entry(), str(tmp_path / "a"), str(tmp_path / "b"))
    assert said.endswith(f"or lies in {tmp_path / 'a'}, {tmp_path / 'b'}.")


def test_a_schema_for_the_settings_goes_with_them(tmp_path: Path) -> None:
    schema = '\n[config_schema]\nproperties.ring_seconds = { type = "integer" }\n'
    place = package(tmp_path / "timer", MANIFEST + schema)
    spec = resolve(entry(manifest=str(place), settings={"voice": 1}), [])
    assert spec.settings_schema == SettingsSchema(
        schema={"properties": {"ring_seconds": {"type": "integer"}}},
        manifest=str(place / MANIFEST_NAME),
        configured=frozenset({"voice"}),
    )


def test_a_manifest_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "gone.toml"
    said = refusal(entry(manifest=str(path)))
    assert str(path) in said
    assert "No such file" in said
    # A directory without one.
    assert str(tmp_path / MANIFEST_NAME) in refusal(entry(manifest=str(tmp_path)))


def test_a_manifest_of_another_plugin_is_refused(tmp_path: Path) -> None:
    directory = package(tmp_path / "timer", name='"clock"')
    for config, directories in ((entry(manifest=str(directory)), []), (entry(), [str(tmp_path)])):
        said = refusal(config, *directories)
        assert "named clock" in said
        assert str(directory / MANIFEST_NAME) in said


def test_a_bad_manifest_is_named_with_its_lines(tmp_path: Path) -> None:
    directory = package(tmp_path / "timer", abi='"one"', kind='"clock"')
    said = refusal(entry(manifest=str(directory)))
    assert f"{directory / MANIFEST_NAME}:4: kind" in said
    assert f"{directory / MANIFEST_NAME}:6: abi" in said


def test_with_neither_manifest_nor_entrypoint_there_is_nothing_to_run(tmp_path: Path) -> None:
    assert "no entrypoint and no manifest" in refusal(entry(), str(tmp_path))


# ---- where it runs, and where its program lies


def test_it_runs_where_the_config_says_or_beside_its_manifest_or_at_home(tmp_path: Path) -> None:
    directory = package(tmp_path / "timer")
    assert resolve(entry(manifest=str(directory), cwd="/srv"), []).cwd == "/srv"
    assert resolve(entry(manifest=str(directory)), []).cwd == str(directory)
    assert resolve(entry(entrypoint=["x"]), []).cwd is None


def test_a_relative_program_lies_beside_the_manifest(tmp_path: Path) -> None:
    directory = package(tmp_path / "timer", entrypoint='["./bin/timer", "./data"]')
    expected = (str(directory / "bin/timer"), "./data")
    assert resolve(entry(manifest=str(directory)), []).argv == expected
    # Also when the config names it, and wherever it runs.
    config = entry(manifest=str(directory), entrypoint=["./bin/timer", "./data"], cwd=str(tmp_path))
    assert resolve(config, []).argv == expected


def test_a_relative_program_without_a_manifest_lies_in_cwd_or_nowhere(tmp_path: Path) -> None:
    assert resolve(entry(entrypoint=["bin/x", "./y"], cwd=str(tmp_path)), []).argv == (str(tmp_path / "bin/x"), "./y")
    said = refusal(entry(entrypoint=["./x"]))
    assert "./x" in said
    assert "absolute path" in said
    # One without a slash is left to the search path.
    assert resolve(entry(entrypoint=["x"], cwd=str(tmp_path)), []).argv == ("x",)
    assert resolve(entry(entrypoint=["/opt/x"]), []).argv == ("/opt/x",)


# ---- over its socket, and started by somebody else


@pytest.fixture
def runtime(tmp_path: Path) -> dict[str, str]:
    """An environment with a private place for sockets."""
    directory = tmp_path / "run"
    directory.mkdir(mode=0o700)
    return {"XDG_RUNTIME_DIR": str(directory)}


@pytest.mark.parametrize("transport", ["connect", "listen"])
def test_a_socket_is_where_the_runtime_directory_is(tmp_path: Path, runtime: dict[str, str], transport: Any) -> None:
    directory = str(package(tmp_path / "timer", transport=f'"{transport}"'))
    path = f"{runtime['XDG_RUNTIME_DIR']}/utter/plugins/timer.sock"
    for config in (entry(manifest=directory), entry(transport=transport, entrypoint=["x"])):
        spec = resolve(config, [], environ=runtime)
        assert (spec.transport, spec.socket_path, spec.spawn) == (transport, path, True)
    # The config is stronger, and stdio needs no place.
    spec = resolve(entry(manifest=directory, transport="stdio"), [], environ={})
    assert (spec.transport, spec.socket_path) == ("stdio", "")


def test_a_socket_without_a_place_is_an_error_that_names_the_plugin(runtime: dict[str, str]) -> None:
    config = entry(transport="connect", entrypoint=["x"])
    for environ, words in (
        ({}, "XDG_RUNTIME_DIR is not set"),
        ({"XDG_RUNTIME_DIR": "/nonexistent"}, "cannot be used"),
        ({"XDG_RUNTIME_DIR": runtime["XDG_RUNTIME_DIR"] + "/../" + "run/../" * 20 + "run"}, "at most 107"),
    ):
        with pytest.raises(ResolveError, match="Plugin timer: .*" + words):
            resolve(config, [], environ=environ)
    assert resolve(config, [], environ={}, runner_socket="/x/r.sock").socket_path == "/x/plugins/timer.sock"


def test_what_somebody_else_starts_needs_no_entrypoint_and_no_manifest(tmp_path: Path, runtime: dict[str, str]) -> None:
    spec = resolve(entry(spawn=False, transport="listen", allow_binaries=["/bin/x"]), [], environ=runtime)
    assert (spec.spawn, spec.argv, spec.allow_binaries, spec.warnings) == (False, (), ("/bin/x",), ())
    # One that has them may be started by somebody else as well, such as a debugger.
    directory = str(package(tmp_path / "timer", transport='"connect"', entrypoint='["./not-there"]'))
    for config in (entry(spawn=False, manifest=directory), entry(spawn=False, transport="connect", entrypoint=["./x"])):
        assert resolve(config, [], environ=runtime).argv == ()
    spec = resolve(entry(spawn=False, manifest=directory), [], environ=runtime)
    assert (spec.transport, spec.kind, spec.settings["ring_seconds"]) == ("connect", "action", 20)


def test_what_somebody_else_starts_has_no_pipes(tmp_path: Path) -> None:
    directory = str(package(tmp_path / "timer"))
    for config in (entry(spawn=False), entry(spawn=False, manifest=directory), entry(spawn=False, transport="stdio")):
        assert 'spawn = false needs transport = "connect" or "listen"' in refusal(config)


def test_what_is_allowed_but_unwise_is_a_warning(runtime: dict[str, str]) -> None:
    def warnings(**fields: Any) -> str:
        return " ".join(resolve(entry(transport="connect", **fields), [], environ=runtime).warnings)

    assert "Every program of this user may attach" in warnings(spawn=False)
    assert "allow_binaries has no effect" in warnings(entrypoint=["x"], allow_binaries=["/bin/x"])
    assert warnings(entrypoint=["x"]) == ""


# ---- the audio ring


def test_the_ring_is_inherited_by_who_says_beforehand_that_it_needs_it_and_may_have_it(tmp_path: Path) -> None:
    ring, other = "host.audio.ringbuffer@1", "host.audio.ringbuffer@2"
    runtime = {"XDG_RUNTIME_DIR": str(tmp_path)}

    def resolved(**fields: Any) -> tuple[bool, str]:
        spec = resolve(entry(**{"entrypoint": ["x"], "cwd": "/", **fields}), [], environ=runtime)
        return spec.inherits_ring, " ".join(spec.warnings)

    assert resolved(requires=[ring], permissions=["microphone"]) == (True, "")
    assert resolved(requires=[other], permissions=["microphone"]) == (False, "")
    assert resolved(permissions=["microphone"]) == (False, "")
    inherits, why = resolved(requires=[ring], permissions=["screen"])
    assert not inherits
    assert 'lacks the permission "microphone"' in why
    inherits, why = resolved(requires=[ring], permissions=["microphone"], runtime="wasm")
    assert not inherits
    assert "a module" in why
    # Over a socket it asks, and is answered.
    assert resolved(requires=[ring], transport="connect") == (False, "")
    # The manifest's and the config's lists are one.
    directory = package(tmp_path / "timer", requires=f'["{ring}"]')
    spec = resolve(entry(manifest=str(directory), permissions=["microphone"]), [])
    assert spec.inherits_ring
