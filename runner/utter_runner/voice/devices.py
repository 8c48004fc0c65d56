"""Which microphones and outputs the configuration can name: `audio.devices`.

Rules here: what is listed works when it is written into the configuration with the source that is configured, and what
would not is left out; a part that cannot be found out is told in a sentence and takes nothing else with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from utter_protocol.methods import AudioDevice, AudioDevices
from utter_runner.machine.pipewire import NodesUnknown
from utter_runner.voice.capture.source import SourceError
from utter_runner.voice.pipewire_nodes import read_nodes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from utter_runner.config import AudioConfig
    from utter_runner.machine.pipewire import Node, Nodes

_NO_DEVICE = {
    "wav": '[audio] source is "wav": a file is heard in place of a microphone.',
    "none": '[audio] source is "none": there is no microphone. Set it to "sounddevice" or "pw-record".',
}
_ONLY_SERVER = (
    'With source = "sounddevice" the microphones of PipeWire are reached through the device of the sound server, which'
    ' follows the default in the sound settings. To name one of them, set source = "pw-record".'
)


async def list_devices(audio: AudioConfig) -> AudioDevices:
    """What there is for `[audio] device` and `output_device`. Never raises because of what is missing."""
    nodes: Nodes | None = None
    problem = ""
    try:
        nodes = await read_nodes()
    except NodesUnknown as error:
        problem = str(error)
    answer = AudioDevices(source=audio.source)
    details = []
    if audio.source == "sounddevice":
        details.append(await _list_portaudio(answer, audio.device or "", nodes))
    elif audio.source == "pw-record" and nodes is not None:
        answer.inputs = _devices(nodes.sources, audio.device or "", nodes.default_source)
        details.append(_unless_chosen(answer.inputs, "device", audio.device, "nothing is heard until it is plugged in"))
    elif audio.source in _NO_DEVICE:
        details.append(_NO_DEVICE[audio.source])
    if nodes is not None:
        answer.outputs = _devices(nodes.sinks, audio.output_device or "", nodes.default_sink)
        details.append(
            _unless_chosen(answer.outputs, "output_device", audio.output_device, "the default output takes its place")
        )
    details.append(problem)
    answer.detail = " ".join(filter(None, details))
    return answer


async def _list_portaudio(answer: AudioDevices, device: str, nodes: Nodes | None) -> str:
    """Fill in the microphones of PortAudio; return what is to be known about them."""
    from utter_runner.voice.capture.portaudio import list_inputs  # noqa: PLC0415 - only what is configured

    try:
        found = await list_inputs(device)
    except SourceError as error:
        return error.reason
    answer.inputs = [
        AudioDevice(name=name, default=name == found.default, chosen=name == found.chosen) for name in found.names
    ]
    details = []
    if not found.names:
        details.append("PortAudio finds no microphone.")
    elif found.chosen is None and device:
        details.append(f"[audio] device is {device!r}, which is not one of these, or could be several: correct it.")
    if nodes is not None and len(nodes.sources) > 1:
        details.append(_ONLY_SERVER)
    return " ".join(details)


def _devices(nodes: Sequence[Node], named: str, default: str) -> list[AudioDevice]:
    return [
        AudioDevice(
            name=node.name,
            description=node.description,
            default=node.name == default,
            chosen=named in (node.name, node.serial) if named else node.name == default,
        )
        for node in nodes
    ]


def _unless_chosen(devices: Sequence[AudioDevice], key: str, named: str | None, then: str) -> str:
    """What becomes of a name that is none of these."""
    if not named or any(device.chosen for device in devices):
        return ""
    return f"[audio] {key} is {named!r}, which PipeWire does not have: {then}."
