"""A recogniser for tests of capture: it knows nothing of speech and looks at the frames that it is fed.

counting_stt.py NAME heard|counted

`heard`: it hears "next" if there was any sound. `counted`: the frames are to count as those of `support.soak` do; it
hears "next" if they do and not one is missing, and what is wrong otherwise.
"""

from __future__ import annotations

import sys
from base64 import b64decode

import numpy as np

from utter_protocol.methods import SttFeedParams, SttSession, SttStartParams, Transcript
from utter_sdk import Plugin

NAME, MODE = sys.argv[1:]
COUNT = 2**20
plugin = Plugin(NAME, version="1.0.0", kind="stt", provides=["stt.transcribe@1"])
sessions: dict[str, list[bytes]] = {}


@plugin.method("stt.start")
def start(params: SttStartParams) -> None:
    sessions[params.session] = []


@plugin.notification("stt.feed")
def feed(params: SttFeedParams) -> None:
    if params.session in sessions:
        sessions[params.session].append(b64decode(params.data_b64))


@plugin.method("stt.finish")
def finish(params: SttSession) -> Transcript:
    frames = np.frombuffer(b"".join(sessions.pop(params.session)), dtype="<f4")
    return Transcript(text=judge(frames), audio_ms=len(frames) // 16)


@plugin.method("stt.cancel")
def cancel(params: SttSession) -> None:
    sessions.pop(params.session, None)


def judge(frames: np.ndarray) -> str:
    if not frames.any():
        return ""
    if MODE == "counted":
        at = np.flatnonzero(frames)
        expected = (frames[at[0]] - 1 + at - at[0]) % COUNT + 1
        wrong = np.flatnonzero(frames[at] != expected)
        if len(wrong):
            return f"frame {at[wrong[0]]} of {len(frames)} is {frames[at[wrong[0]]]:.0f} and not {expected[wrong[0]]:.0f}"
    return "next"


plugin.run()
