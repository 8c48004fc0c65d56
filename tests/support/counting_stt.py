"""A recogniser for tests of capture: it knows nothing of speech and looks at the frames that it is fed.

counting_stt.py NAME heard|counted

`heard`: it hears "next" if there was any sound. `counted`: the frames are to count as those of `support.soak` do; it
hears "next" if they do and not one is missing, and what is wrong otherwise.
"""

from __future__ import annotations

import sys
from base64 import b64decode
from itertools import pairwise

import numpy as np

from utter_protocol.methods import SttFeedParams, SttSession, SttStartParams, Transcript
from utter_sdk import Plugin

NAME, MODE = sys.argv[1:]
COUNT = 2**20
RATE = 16_000
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
    return (counted(frames) if MODE == "counted" else "") or "next"


def counted(frames: np.ndarray) -> str:
    """What is wrong with the count, or nothing."""
    # A microphone that delivers only zeros is opened anew, and the session goes on. Other openings begin none's middle.
    begins = [0, *np.flatnonzero(frames < 0), len(frames)]
    for start, end in pairwise(begins):
        if start and frames[start - RATE : start].any():
            return f"opening {-frames[start]:.0f} began at frame {start} of {len(frames)}, and before it was no silence"
        piece = frames[start:end]
        at = np.flatnonzero(piece > 0)
        if len(at):
            due = (piece[at[0]] - 1 + at - at[0]) % COUNT + 1
            wrong = at[piece[at] != due]
            if len(wrong):
                return f"frame {start + wrong[0]} of {len(frames)} is {piece[wrong[0]]:.0f}, which was not due"
    return ""


plugin.run()
