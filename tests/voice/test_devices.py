"""Which microphones and outputs the configuration can name."""

from __future__ import annotations

import json
import os
import stat
import sys
from typing import TYPE_CHECKING, Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from support.portaudio import PATIENCE, Library
from utter_runner.config.schema import AudioConfig
from utter_runner.machine.pipewire import Node, NodesUnknown, parse_nodes
from utter_runner.voice import pipewire_nodes
from utter_runner.voice.capture import portaudio
from utter_runner.voice.capture.portaudio import Inputs
from utter_runner.voice.capture.source import SourceError
from utter_runner.voice.devices import list_devices
from utter_runner.voice.pipewire_nodes import read_nodes

if TYPE_CHECKING:
    from pathlib import Path


def node(name: Any, kind: Any, serial: Any = 7, **more: Any) -> dict[str, Any]:
    properties = {"node.name": name, "media.class": kind, "object.serial": serial, **more}
    return {"id": serial, "type": "PipeWire:Interface:Node", "info": {"props": properties}}


def defaults(source: str, sink: str) -> dict[str, Any]:
    entries = [
        {"subject": 0, "key": f"default.audio.{what}", "type": "Spa:String:JSON", "value": {"name": name}}
        for what, name in (("source", source), ("sink", sink))
    ]
    return {"id": 90, "type": "PipeWire:Interface:Metadata", "props": {"metadata.name": "default"}, "metadata": entries}


GRAPH = [
    {"id": 0, "type": "PipeWire:Interface:Core", "info": {"props": {"core.name": "pipewire-0"}}},
    node("built-in", "Audio/Source", 40, **{"node.description": "Built-in Microphone"}),
    node("usb", "Audio/Source/Virtual", 41, **{"node.nick": "Go Mic"}),
    node("usb", "Audio/Source", 42, **{"node.description": "a second of that name"}),
    node("headset", "Audio/Duplex", 43),
    node("speakers", "Audio/Sink", 44, **{"node.description": "Speakers"}),
    node("firefox", "Stream/Output/Audio", 45),
    node(None, "Audio/Source", 46),
    defaults("usb", "speakers"),
]


def test_sources_and_sinks_are_told_apart_and_named_once() -> None:
    nodes = parse_nodes(json.dumps(GRAPH).encode())
    assert nodes.sources == [
        Node("built-in", "Built-in Microphone", "40"),
        Node("usb", "Go Mic", "41"),
        Node("headset", "", "43"),
    ]
    assert nodes.sinks == [Node("headset", "", "43"), Node("speakers", "Speakers", "44")]
    assert (nodes.default_source, nodes.default_sink) == ("usb", "speakers")


def test_what_changes_while_it_is_printed_stands_in_further_lists() -> None:
    gone = {"id": 41, "info": None}
    renamed = node("built-in", "Audio/Source", 40, **{"node.description": "Another"})
    nodes = parse_nodes("\n".join(map(json.dumps, (GRAPH, [gone], [renamed]))).encode())
    assert [(one.name, one.description) for one in nodes.sources] == [
        ("built-in", "Another"),
        ("usb", "a second of that name"),
        ("headset", ""),
    ]


@pytest.mark.parametrize("dump", [b"", b"{}", b"null", b"[", b"\xff", b"[" * 100_000])
def test_what_is_no_list_is_refused(dump: bytes) -> None:
    with pytest.raises(NodesUnknown, match="something else than lists"):
        parse_nodes(dump)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["info", "props", "metadata", "key", "value", "name", "node.name", "media.class", "metadata.name"]
            ),
            inner | st.sampled_from(["Audio/Source", "default", "default.audio.source"]),
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(st.lists(JSON, max_size=4))
def test_any_list_is_read(objects: list[Any]) -> None:
    nodes = parse_nodes(json.dumps(objects).encode())
    assert all(isinstance(one.name, str) and one.name for one in (*nodes.sources, *nodes.sinks))


@pytest.fixture
def pw_dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is all of PATH; a test puts pw-dump into it."""
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))
    return directory


def install(directory: Path, script: str) -> None:
    program = directory / "pw-dump"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def graph_program(directory: Path, graph: list[Any]) -> None:
    (directory / "graph.json").write_text(json.dumps(graph) + "\n")
    install(directory, f"while read -r line; do echo \"$line\"; done < '{directory}/graph.json'")


async def test_a_pipewire_that_cannot_be_asked_is_told(pw_dump: Path) -> None:
    with pytest.raises(NodesUnknown, match="pw-dump, which lists PipeWire's devices, is not installed"):
        await read_nodes()
    install(pw_dump, 'echo "can\'t connect: Host is down" >&2; exit 255')
    with pytest.raises(NodesUnknown, match="can't connect: Host is down"):
        await read_nodes()
    (pw_dump / "pw-dump").write_text("#!/no/such/program\n")
    with pytest.raises(NodesUnknown, match="cannot be started: No such file"):
        await read_nodes()


async def test_a_pipewire_that_hangs_is_given_up(pw_dump: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(pw_dump / "never")
    # Opening it waits for a writer, which never comes.
    install(pw_dump, f"read -r line < '{pw_dump}/never'")
    monkeypatch.setattr(pipewire_nodes, "PATIENCE", 0.05)
    with pytest.raises(NodesUnknown, match="may hang"):
        await read_nodes()


async def listed(directory: Path, graph: list[Any] | None, **audio: Any) -> dict[str, Any]:
    if graph is not None:
        graph_program(directory, graph)
    found = await list_devices(AudioConfig(**audio))
    return {
        "inputs": [(one.name, one.default, one.chosen) for one in found.inputs],
        "outputs": [(one.name, one.default, one.chosen) for one in found.outputs],
        "detail": found.detail,
    }


async def test_the_nodes_of_pipewire_for_pw_record(pw_dump: Path) -> None:
    found = await listed(pw_dump, GRAPH, source="pw-record")
    assert found["inputs"] == [("built-in", False, False), ("usb", True, True), ("headset", False, False)]
    assert found["outputs"] == [("headset", False, False), ("speakers", True, True)]
    assert found["detail"] == ""


@pytest.mark.parametrize("named", ["built-in", "40"])
async def test_a_node_is_chosen_by_its_name_or_serial(pw_dump: Path, named: str) -> None:
    found = await listed(pw_dump, GRAPH, source="pw-record", device=named, output_device="headset")
    assert found["inputs"][:2] == [("built-in", False, True), ("usb", True, False)]
    assert found["outputs"] == [("headset", False, True), ("speakers", True, False)]


async def test_a_name_that_is_none_of_them_is_told(pw_dump: Path) -> None:
    found = await listed(pw_dump, GRAPH, source="pw-record", device="usp", output_device="speakers2")
    assert not any(chosen for _, _, chosen in (*found["inputs"], *found["outputs"]))
    assert found["detail"] == (
        "[audio] device is 'usp', which PipeWire does not have: nothing is heard until it is plugged in."
        " [audio] output_device is 'speakers2', which PipeWire does not have: the default output takes its place."
    )


async def test_without_pipewire_there_is_a_reason(pw_dump: Path) -> None:
    found = await listed(pw_dump, None, source="pw-record")
    assert (found["inputs"], found["outputs"]) == ([], [])
    assert "pw-dump" in found["detail"]


@pytest.mark.parametrize(("source", "says"), [("none", 'source is "none"'), ("wav", 'source is "wav"')])
async def test_a_source_without_microphones_says_so_and_has_outputs(pw_dump: Path, source: str, says: str) -> None:
    found = await listed(pw_dump, GRAPH, source=source, wav_path="/x.wav")
    assert found["inputs"] == []
    assert found["outputs"]
    assert says in found["detail"]


async def test_the_devices_of_portaudio(pw_dump: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def inputs(device: str) -> Inputs:
        asked.append(device)
        return Inputs(["pipewire", "hw:1"], "pipewire", None if device else "pipewire")

    monkeypatch.setattr(portaudio, "list_inputs", inputs)
    found = await listed(pw_dump, GRAPH, source="sounddevice")
    assert found["inputs"] == [("pipewire", True, True), ("hw:1", False, False)]
    assert found["outputs"] == [("headset", False, False), ("speakers", True, True)]
    assert 'set source = "pw-record"' in found["detail"]
    found = await listed(pw_dump, [], source="sounddevice", device="hw")
    assert not any(chosen for _, _, chosen in found["inputs"])
    assert "[audio] device is 'hw', which is not one of these" in found["detail"]
    assert "pw-record" not in found["detail"]
    assert asked == ["", "hw"]


async def test_a_portaudio_that_cannot_be_used_hides_no_outputs(pw_dump: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def inputs(_device: str) -> Inputs:
        raise SourceError("PortAudio is not there.")

    monkeypatch.setattr(portaudio, "list_inputs", inputs)
    found = await listed(pw_dump, GRAPH, source="sounddevice")
    assert (found["inputs"], found["detail"]) == ([], "PortAudio is not there.")
    assert found["outputs"]

    async def none(_device: str) -> Inputs:
        return Inputs([], None, None)

    monkeypatch.setattr(portaudio, "list_inputs", none)
    found = await listed(pw_dump, [], source="sounddevice")
    assert found["detail"] == "PortAudio finds no microphone."


async def test_asking_does_not_hold_up_the_loop_and_does_not_load_the_library(
    pw_dump: Path, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    library = Library()
    # Another test may have loaded it.
    monkeypatch.delitem(sys.modules, "sounddevice", raising=False)
    await nursery.start(library.serve, monkeypatch)
    # It is the loop that answers what the library asks.
    with trio.fail_after(PATIENCE):
        found = await list_devices(AudioConfig(source="sounddevice"))
    assert [one.name for one in found.inputs] == ["pipewire"]
    assert "sounddevice" not in sys.modules
    nursery.cancel_scope.cancel()
