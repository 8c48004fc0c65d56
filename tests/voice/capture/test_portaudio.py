"""The PortAudio source in whose process the library does what the real one does on a bad day."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from support import audio
from support.capturing import capturing
from support.portaudio import PATIENCE, Library, Stream, microphone, recording_from
from utter_runner.voice.capture import portaudio, portaudio_process
from utter_runner.voice.capture.capture import Capture
from utter_runner.voice.capture.portaudio import PortAudioSource
from utter_runner.voice.capture.program import STDERR_TAIL, Program
from utter_runner.voice.capture.source import OnFrames, SourceError
from utter_runner.voice.collaborators import AudioUnavailable

INVALID_RATE, INVALID_CHANNELS, DEVICE_UNAVAILABLE = -9997, -9998, -9985
BLOCK = bytes(range(256)) * 5


@pytest.fixture
async def library(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Library]:
    library = Library()
    await nursery.start(library.serve, monkeypatch)
    yield library
    nursery.cancel_scope.cancel()


async def fails(source: PortAudioSource) -> SourceError:
    with trio.fail_after(PATIENCE), pytest.raises(SourceError) as caught:
        await source.run(lambda _: None)
    return caught.value


async def opened(source: PortAudioSource, library: Library) -> dict[str, Any]:
    """The settings of the stream that the source has opened when frames have come from it; it is closed again."""
    async with recording_from(source) as recording:
        stream = await library.stream()
        # A resampler must have heard some before it gives any.
        for _ in range(10):
            await stream.deliver(bytes(8 * 960))
        await recording.hears(1)
        recording.cancel()
    return stream.settings


# ---- opening


async def test_the_stream_is_opened_as_measured_and_ended_with_its_process(library: Library) -> None:
    async with recording_from(PortAudioSource()) as recording:
        stream = await library.stream()
        assert stream.settings == {
            "samplerate": 16_000,
            "channels": 1,
            "dtype": "float32",
            "device": "pipewire",
            "blocksize": 320,
            "latency": 0.1,
        }
        await stream.deliver(BLOCK)
        assert await recording.hears(len(BLOCK)) == BLOCK
        recording.cancel()
    await stream.child.end()
    assert not await trio.Path(f"/proc/{stream.child.pid}").exists()
    assert (stream.child.closed, recording.error) == (0, None)


@pytest.mark.parametrize(
    ("names", "chosen"), [(["hw:0", "pulse", "pipewire"], "pipewire"), (["hw:0", "pulse"], "pulse"), (["hw:0"], None)]
)
async def test_a_sound_server_is_preferred_to_a_device_of_which_it_may_be_in_use(
    library: Library, names: list[str], chosen: str | None
) -> None:
    library.devices, library.default = [microphone(name) for name in names], 0
    assert (await opened(PortAudioSource(), library))["device"] == chosen


async def test_while_the_sound_server_is_away_the_hardware_is_left_to_it(library: Library) -> None:
    source, served = PortAudioSource(), library.devices
    hardware, library.default = [microphone("hw:0", 2)], 0
    for _ in range(2):
        assert (await opened(source, library))["device"] == "pipewire"
        library.devices = hardware
        for _ in range(2):
            assert "start it again" in (await fails(source)).reason
            assert "(hw:0) is left to the server" in (await fails(source)).reason
        library.devices = served
    await source.aclose()
    # Who names it wants it.
    library.devices = hardware
    assert (await opened(PortAudioSource("hw:0"), library))["device"] == "hw:0"


@pytest.mark.parametrize("code", [INVALID_RATE, INVALID_CHANNELS])
async def test_a_device_that_refuses_is_asked_for_what_it_prefers_and_remembered(library: Library, code: int) -> None:
    library.devices[1] = microphone("pipewire", 2)
    library.accepts = lambda rate, channels: 0 if (rate, channels) == (48_000, 2) else code
    source = PortAudioSource()
    async with recording_from(source) as recording:
        stream = await library.stream()
        assert stream.settings["blocksize"] == 960
        stereo = audio.tone(440, 1, 48_000).repeat(2).tobytes()
        for at in range(0, len(stereo), 960 * 8):
            await stream.deliver(stereo[at : at + 960 * 8])
        await recording.hears(4 * 15_500)
        recording.cancel()
    assert library.asked == [(16_000, 1), (48_000, 2)]
    heard = audio.floats(bytes(recording.heard))
    assert len(heard) == pytest.approx(16_000, abs=500)
    assert audio.loudest_frequency(heard) == pytest.approx(440, abs=0.5)
    await opened(source, library)
    assert library.asked == [(16_000, 1), (48_000, 2), (48_000, 2)]
    # It has become another device.
    library.accepts = lambda rate, _channels: 0 if rate == 16_000 else code
    await opened(source, library)
    assert library.asked[3:] == [(48_000, 2), (16_000, 1)]


async def test_an_unknown_name_and_no_microphone_at_all_are_told_apart(library: Library) -> None:
    source = PortAudioSource("desk")
    reason = (await fails(source)).reason
    assert "No input device matching 'desk'" in reason
    assert reason.endswith("PortAudio lists: pipewire.")
    library.devices = library.devices[:1]
    for one in (PortAudioSource(), source):
        assert "PortAudio finds no microphone" in (await fails(one)).reason
        await one.aclose()


async def test_a_list_that_may_be_old_is_read_again_before_a_refusal_is_told(library: Library) -> None:
    library.accepts = lambda _rate, _channels: DEVICE_UNAVAILABLE
    source = PortAudioSource()
    for attempt in range(3):
        assert "The microphone cannot be opened: " in (await fails(source)).reason
        # What was read just before is not read again in the same attempt.
        assert (library.refreshes, len(library.asked)) == (attempt + 1, attempt + 2)
    library.accepts = lambda _rate, _channels: 0
    for _ in range(2):
        await opened(source, library)
    assert library.refreshes == 4
    # One that has failed was as good as a new one.
    assert len(library.children) == 2


async def test_a_warm_process_finds_what_has_come_since_it_was_started(library: Library) -> None:
    library.devices = []
    source = PortAudioSource()
    await source.prepare()
    await library.child()
    library.devices = [microphone("hw:0"), microphone("pipewire", 64)]
    assert (await opened(source, library))["device"] == "pipewire"
    assert library.refreshes == 1


async def test_hardware_is_not_taken_for_all_there_is_by_an_old_list(library: Library) -> None:
    served, library.devices, library.default = library.devices, [microphone("hw:0")], 0
    source = PortAudioSource()
    await source.prepare()
    await library.child()
    library.devices = served
    assert (await opened(source, library))["device"] == "pipewire"


async def test_a_stream_that_cannot_be_started_is_closed_and_told(library: Library) -> None:
    library.refuses_start = "Wait timed out"
    source = PortAudioSource()
    assert (await fails(source)).reason == "The microphone cannot be opened: Wait timed out."
    (child,) = library.children
    assert child.closed == 2
    await source.aclose()


async def test_a_library_that_fails_to_initialise_is_tried_again(library: Library) -> None:
    library.problem = "the server is confused"
    source = PortAudioSource()
    for _ in range(2):
        error = await fails(source)
        assert (error.reason, error.permanent) == ("PortAudio cannot be initialised: the server is confused.", False)
    library.problem = ""
    library.accepts = lambda _rate, _channels: DEVICE_UNAVAILABLE
    assert "cannot be opened" in (await fails(source)).reason
    library.problem = "it is confused again"
    assert "it is confused again" in (await fails(source)).reason
    library.problem, library.accepts = "", lambda _rate, _channels: 0
    await opened(source, library)


# ---- ends


async def test_a_stream_that_the_server_ends_is_a_fault(library: Library) -> None:
    async with recording_from(PortAudioSource()) as recording:
        stream = await library.stream()
        await stream.deliver(BLOCK)
        await stream.finish()
    assert recording.error is not None
    assert recording.error.reason == "The audio server closed the stream from the default source (PortAudio)."
    assert recording.heard == BLOCK
    await stream.child.end()


async def test_opening_that_hangs_can_be_given_up_and_the_next_one_is_well(library: Library) -> None:
    library.hangs_in_open = True
    source = PortAudioSource()
    async with recording_from(source) as recording:
        child = await library.opening.receive()
        recording.cancel()
    await child.end()
    library.hangs_in_open = False
    await opened(source, library)


@pytest.mark.parametrize(("number", "how"), [(signal.SIGKILL, "by SIGKILL"), (signal.SIGSEGV, "by SIGSEGV")])
async def test_a_process_that_is_killed_is_told_with_what_it_said(library: Library, number: int, how: str) -> None:
    async with recording_from(PortAudioSource()) as recording:
        stream = await library.stream()
        await stream.child.order("complain", text="out of\nmemory\n")
        await stream.child.done()
        stream.child.kill(number)
    assert recording.error is not None
    assert recording.error.reason == f"The program that records has ended {how}: out of memory."
    assert not recording.error.permanent


async def test_of_what_it_complains_as_much_is_kept_as_can_be_read(library: Library) -> None:
    async with recording_from(PortAudioSource()) as recording:
        stream = await library.stream()
        # Nobody reads it, so it holds itself up and nobody else.
        await stream.child.order("complain", text="no " * 100_000)
        await stream.child.order("deliver", data="")
        stream.child.kill(signal.SIGKILL)
    assert recording.error is not None
    assert len(recording.error.reason) < STDERR_TAIL + 100


async def test_a_process_that_spins_is_killed_and_the_microphone_comes_back(library: Library) -> None:
    async with capturing(PortAudioSource(), "always", stall=0.5) as (capture, events):
        stream = await library.stream()
        await stream.deliver(BLOCK)
        await events.next("open")
        for _ in range(2):
            await stream.child.order("spin")
            assert "No audio has come from" in await events.next("fault")
            await stream.child.end()
            before, stream = stream, await library.stream()
            assert stream.child is not before.child
            await stream.deliver(BLOCK)
            await events.next("recovered")
        assert capture.status["faults"] == 2
    await stream.child.end()


async def test_a_process_that_spins_while_nobody_listens_is_closed_at_once(library: Library) -> None:
    async with recording_from(PortAudioSource()) as recording:
        stream = await library.stream()
        await stream.child.order("spin")
        await stream.child.done()
        recording.cancel()
    await stream.child.end()


# ---- the one that waits


async def test_the_warm_process_is_used_replaced_and_ended(library: Library) -> None:
    async with capturing(PortAudioSource()) as (capture, events):
        warm = await library.child()
        for _ in range(2):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(capture.acquire)
                stream = await library.stream()
                assert stream.child is warm
                await stream.deliver(BLOCK)
            await events.next("open")
            capture.release()
            await events.next("closed")
            await warm.end()
            warm = await library.child()
        capture.reconfigure(
            PortAudioSource("pipe"), mode="on-demand", open_seconds=2, stall_seconds=0.5, silence_seconds=3
        )
        await warm.end()
        warm = await library.child()
        # It waits, and nothing else is there.
        assert [child for child in library.children if not child.gone.is_set()] == [warm]
    await warm.end()


async def test_a_warm_process_that_has_died_is_replaced(library: Library) -> None:
    source = PortAudioSource()

    async def dies() -> None:
        assert source._ready is not None
        (await library.child()).kill(signal.SIGKILL)
        await source._ready.program.wait()

    await source.prepare()
    await dies()
    await source.prepare()
    await dies()
    await opened(source, library)
    assert len(library.children) == 3


async def test_what_never_opens_keeps_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sounddevice.py").write_text("raise OSError('PortAudio library not found')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    source = PortAudioSource()
    async with capturing(source) as (capture, events):
        with pytest.raises(AudioUnavailable, match="Install libportaudio2"):
            await capture.acquire()
        await events.next("fault")
        await trio.testing.wait_all_tasks_blocked()
        assert source._ready is None


async def test_who_cannot_start_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portaudio, "_PROCESS", ["/no/such/program"])
    source = PortAudioSource()
    await source.prepare()
    assert "cannot be started: [Errno 2] No such file" in (await fails(source)).reason
    with pytest.raises(SourceError, match="cannot be started"):
        await portaudio.list_inputs("")


# ---- the parent


PARENT = """
import sys, trio
from utter_runner.voice.capture.portaudio import PortAudioSource
from utter_runner.voice.capture.source import SourceError
heard = 0
def on_frames(frames):
    global heard
    heard += len(frames)
async def main():
    try:
        await PortAudioSource().run(on_frames)
    except SourceError as error:
        print(heard, error.reason)
trio.run(main)
"""


def python(program: str, *arguments: str, **options: Any) -> subprocess.Popen[Any]:
    return subprocess.Popen([sys.executable, "-c", program, *arguments], **options)


async def test_nothing_is_left_by_a_runner_that_is_killed(library: Library) -> None:
    with python(PARENT) as parent:
        stream = await library.stream()
        await stream.child.order("spin")
        await stream.child.done()
        parent.kill()
        await stream.child.end()


async def test_the_process_ends_with_its_stdin(library: Library) -> None:
    program = Program(portaudio._PROCESS)
    child = await library.child()
    await program.stdin.send_all(json.dumps({"open": "", "format": None, "server": False}).encode() + b"\n")
    await library.stream()
    await child.order("spin")
    await child.done()
    await program.stdin.aclose()
    with trio.fail_after(PATIENCE):
        assert await program.wait() == 0
    await program.end()


async def test_the_process_ends_with_its_parent_although_its_stdin_is_open(library: Library) -> None:
    read, write = os.pipe()
    start = "import subprocess, sys; subprocess.Popen(sys.argv[1:]).wait()"
    try:
        with python(start, *portaudio._PROCESS, stdin=read, stdout=subprocess.DEVNULL) as parent:
            child = await library.child()
            parent.kill()
            await child.end()
    finally:
        os.close(read)
        os.close(write)


async def test_portaudios_thread_does_not_wait_for_a_runner_that_stands_still(library: Library) -> None:
    blocks = 240
    with python(PARENT, stdout=subprocess.PIPE, text=True) as parent:
        stream = await library.stream()
        parent.send_signal(signal.SIGSTOP)
        # More than twice what the pipe holds; each is done when the callback has returned.
        for _ in range(blocks):
            await stream.deliver(BLOCK * 2)
        parent.send_signal(signal.SIGCONT)
        await stream.finish()
        assert parent.stdout is not None
        heard, reason = (await trio.to_thread.run_sync(parent.stdout.read)).split(maxsplit=1)
    assert 0 < int(heard) < blocks * len(BLOCK) * 2
    # What is lost, is lost as a whole.
    assert int(heard) % len(BLOCK) == 0
    assert "blocks were lost, which nobody fetched" in reason


async def test_a_request_that_is_none_ends_the_process_with_what_was_wrong(library: Library) -> None:
    program = Program(portaudio._PROCESS)
    await program.stdin.send_all(b'{"what": 1}\n')
    with trio.fail_after(PATIENCE):
        code, complaint = await portaudio._Recorder(program).last_words()
    assert (code, complaint[-18:]) == (1, "KeyError: 'server'")
    await program.end()


# ---- the answer


class Pipes:
    """What a source sees of a program, from the program's side."""

    def __init__(self) -> None:
        self.reads, stdin = None, trio.testing.memory_stream_one_way_pair()
        self.stdin, self.requests = stdin
        self.answers, self.stdout = trio.testing.memory_stream_one_way_pair()
        self.program: Any = SimpleNamespace(stdin=self.stdin, stdout=self.stdout)


READY = b'{"answer":"ready"}\n'
OPENED = b'{"answer":"opened","format":[16000,1],"server":true,"device":null}\n'


@pytest.mark.parametrize("prepared", [False, True])
async def test_an_answer_may_come_in_any_pieces_and_frames_with_it(prepared: bool) -> None:
    said = READY + OPENED
    splits = [[said[:at], said[at:] + b"fram"] for at in range(1, len(said))]
    for pieces in ([bytes([byte]) for byte in said], [said + b"fram"], *splits):
        pipes = Pipes()
        # A stream in memory joins what is sent, so that each piece is looked at before the next one comes.
        pipes.stdout.receive_some = one_by_one(pieces)  # type: ignore[method-assign] # see above
        recorder = portaudio._Recorder(pipes.program)
        if prepared:
            await recorder.loaded()
        assert await recorder.ask({"open": ""}) == portaudio._Opened((16_000, 1), server=True, device=None)
        assert recorder.rest == pieces[-1].rpartition(b"\n")[2]
        assert await pipes.requests.receive_some() == b'{"open":""}\n'


async def test_who_stops_waiting_for_the_library_loses_nothing_of_what_was_said(
    autojump_clock: trio.testing.MockClock,
) -> None:
    pipes = Pipes()
    recorder = portaudio._Recorder(pipes.program)
    await pipes.answers.send_all(READY[:5])
    with trio.move_on_after(1) as waited:
        await recorder.loaded()
    assert waited.cancelled_caught
    await pipes.answers.send_all(READY[5:] + OPENED)
    assert await recorder.ask({"open": ""}) == portaudio._Opened((16_000, 1), server=True, device=None)


def one_by_one(pieces: list[bytes]) -> Any:
    rest = [*pieces]

    async def receive_some(_max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        return rest.pop(0) if rest else b""

    return receive_some


@pytest.mark.parametrize("before", [b"", READY])
@pytest.mark.parametrize(
    "said",
    [
        b"Traceback (most recent call last):\n",
        b"{}\n",
        b'{"answer":"opened"}\n',
        b'{"answer":"opened","format":[16000],"server":true,"device":null}\n',
        b"\xff\xfe\n",
        b"\n",
    ],
)
async def test_what_is_no_answer_is_told_as_such(before: bytes, said: bytes) -> None:
    pipes = Pipes()
    await pipes.answers.send_all(before + said)
    with pytest.raises(SourceError, match="has answered with something else"):
        await portaudio._Recorder(pipes.program).ask({"open": ""})


def replace_process(directory: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Have a shell script stand for the program that records."""
    script = directory / "process"
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o700)
    monkeypatch.setattr(portaudio, "_PROCESS", [str(script)])


async def test_one_that_says_something_else_than_that_it_is_ready_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_process(tmp_path, monkeypatch, "echo hello; read line")
    source = PortAudioSource()
    await source.prepare()
    assert source._ready is None
    assert "has answered with something else: b'hello'" in (await fails(source)).reason


async def test_an_answer_without_end_is_not_waited_for() -> None:
    pipes = Pipes()
    await pipes.answers.send_all(bytes(portaudio._LONGEST_ANSWER + 1))
    with pytest.raises(SourceError, match="has answered with something else"):
        await portaudio._Recorder(pipes.program).ask({"open": ""})


async def test_an_answer_that_breaks_off_is_the_end_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = f"echo '{READY.decode().strip()}'"
    replace_process(tmp_path, monkeypatch, f"""{ready}; printf '{{"answer":"op'; echo torn >&2; exit 3""")
    source = PortAudioSource()
    assert (await fails(source)).reason == "The program that records has ended with exit status 3: torn."
    answers = OPENED, b'{"answer":"inputs","names":[],"default":null,"chosen":null}\n'
    for answer, ask in zip(answers, (lambda: portaudio.list_inputs(""), lambda: source.run(len)), strict=True):
        # It is one to another question.
        replace_process(tmp_path, monkeypatch, f"{ready}; read line; echo '{answer.decode().strip()}'")
        with pytest.raises(SourceError, match="has answered with something else"):
            await ask()


# ---- what each block costs


def called_by(act: Any) -> set[str]:
    """The functions, of Python and of C, that a thread of the library calls."""
    calls: set[str] = set()

    def note(frame: Any, event: str, function: Any) -> None:
        if event == "call":
            calls.add(frame.f_code.co_qualname)
        elif event == "c_call":
            calls.add(function.__qualname__)

    # Whoever is called back when garbage is collected has no part in it.
    gc.disable()
    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls - {"setprofile"}


async def test_the_callback_writes_into_the_pipe_and_nothing_else() -> None:
    read, write = os.pipe()
    try:
        callback = portaudio_process.PortAudio(portaudio_process.Output(write))._callback(16_000, 1)
        calls = await trio.to_thread.run_sync(called_by, lambda: callback(bytes(4 * 320), 320, None, None))
        assert len(os.read(read, 1 << 16)) == 4 * 320
    finally:
        os.close(read)
        os.close(write)
    way = {"test_the_callback_writes_into_the_pipe_and_nothing_else.<locals>.<lambda>"}
    way |= {"PortAudio._callback.<locals>.deliver", "Output.write"}
    # The one system call.
    assert calls - way - {"len", "lock.__enter__", "lock.__exit__"} == {"write"}


class Held:
    """A source that gives away where its frames go."""

    description, live = "held", True

    def __init__(self) -> None:
        self.opened = trio.Event()
        self.on_frames: OnFrames

    async def prepare(self) -> None:
        pass

    async def aclose(self) -> None:
        pass

    async def run(self, on_frames: OnFrames) -> None:
        self.on_frames = on_frames
        self.opened.set()
        await trio.sleep_forever()


async def test_what_is_read_is_copied_into_the_ring_moves_the_position_and_wakes_and_nothing_else() -> None:
    source = Held()
    capture = Capture(source, mode="always", on_event=lambda _: None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(capture.run)
        await source.opened.wait()
        nursery.start_soon(capture.until_delivering)
        await trio.testing.wait_all_tasks_blocked()
        calls = await trio.to_thread.run_sync(called_by, lambda: source.on_frames(bytes(4 * 320)))
        await capture.until_delivering()
        assert capture.position == 320
        nursery.cancel_scope.cancel()
    ring = {
        "RingWriter.write",
        "RingPen.write",
        "RingPen._copy",
        "RingWriter._wake",
        "RingLayout.frame_size",
        "spans",
        "Fence.__call__",
    }
    way = {
        "test_what_is_read_is_copied_into_the_ring_moves_the_position_and_wakes_and_nothing_else.<locals>.<lambda>",
        "_Opening.write",
    }
    plain = {
        "divmod",
        "len",
        "min",
        "max",
        "memoryview.cast",
        "lock.__enter__",
        "lock.__exit__",
        "spans.<locals>.<listcomp>",
    }
    # The one system call writes the eventfd of who waits.
    assert calls - plain == ring | way | {"write"}


# ---- which microphones there are


async def listed(device: str = "") -> tuple[list[str], str | None, str | None]:
    with trio.fail_after(PATIENCE):
        found = await portaudio.list_inputs(device)
    return found.names, found.default, found.chosen


async def test_the_server_is_the_default_and_outputs_are_left_out(library: Library) -> None:
    library.devices = [microphone("hw:0", 2), microphone("hw:0 out", 0), microphone("pipewire", 64)]
    library.default = 0
    assert await listed() == (["hw:0", "pipewire"], "pipewire", "pipewire")
    assert await listed("hw") == (["hw:0", "pipewire"], "pipewire", "hw:0")
    # What was plugged in since the last time is there.
    library.devices.append(microphone("desk"))
    assert await listed("none such") == (["hw:0", "pipewire", "desk"], "pipewire", None)
    for child in library.children:
        await child.end()


async def test_without_a_server_it_is_portaudios_own_default(library: Library) -> None:
    library.devices, library.default = [microphone("hw:0", 2), microphone("hw:1")], 1
    assert (await listed())[1:] == ("hw:1", "hw:1")
    library.devices, library.default = [microphone("hw:0", 2)], -1
    assert (await listed())[1:] == (None, None)
    library.devices = []
    assert await listed() == ([], None, None)


async def test_devices_of_one_name_are_told_apart_or_left_out(library: Library) -> None:
    library.devices = [microphone("mic"), microphone("mic", system="OSS"), microphone("twin"), microphone("twin")]
    assert await listed("mic, oss") == (["mic, ALSA", "mic, OSS"], None, "mic, OSS")
    assert (await listed("mic"))[2] is None


async def test_listing_does_not_touch_a_stream_and_is_up_to_date(library: Library) -> None:
    async with recording_from(PortAudioSource()) as recording:
        stream: Stream = await library.stream()
        library.devices.append(microphone("desk"))
        assert await listed() == (["pipewire", "desk"], "pipewire", "pipewire")
        await stream.deliver(BLOCK)
        await recording.hears(len(BLOCK))
        assert (library.refreshes, stream.child.closed) == (0, 0)
        recording.cancel()


async def test_hardware_that_is_recorded_is_listed_although_portaudio_does_not_see_it(library: Library) -> None:
    library.devices = [microphone("desk, hw:1"), microphone("pipewire", 64)]
    async with recording_from(PortAudioSource("desk")) as recording:
        await (await library.stream()).deliver(BLOCK)
        await recording.hears(len(BLOCK))
        library.devices = [microphone("pipewire", 64)]
        assert await listed("desk") == (["pipewire", "desk, hw:1"], "pipewire", "desk, hw:1")
        recording.cancel()
    assert await listed("desk") == (["pipewire"], "pipewire", None)


async def test_a_library_that_cannot_list_says_so(library: Library) -> None:
    library.broken = "it is not initialised"
    with pytest.raises(SourceError, match="cannot list the microphones: it is not initialised"):
        await portaudio.list_inputs("")


async def test_a_library_that_hangs_is_not_waited_for(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portaudio, "_LISTING_SECONDS", 0.01)
    with pytest.raises(SourceError, match=r"has not listed the microphones for 0\.01 s"):
        await portaudio.list_inputs("")
