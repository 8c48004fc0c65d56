"""A recogniser for the guest, where whisper takes minutes for a sentence: pocketsphinx with a grammar of the hints.

Rules here: it really listens. What it says was heard, out of the phrases that the router offers as hints; words that
are not in its dictionary make a phrase unknown to it. It keeps no audio after the session.
"""

from __future__ import annotations

import re
from base64 import b64decode

import numpy as np
from pocketsphinx import Decoder, get_model_path

from utter_protocol.methods import SttFeedParams, SttSession, SttStartParams, Transcript
from utter_sdk import Plugin

RATE = 16_000
_PLAIN = re.compile(r"[a-z' ]+")

plugin = Plugin("ear", version="1.0.0", kind="stt", provides=["stt.transcribe@1"])
sessions: dict[str, list[bytes]] = {}
known: list[str] = []
decoder = Decoder(
    hmm=get_model_path("en-us/en-us"), dict=get_model_path("en-us/cmudict-en-us.dict"), lm=None, loglevel="FATAL"
)


def grammar(hints: list[str]) -> str:
    """A JSGF grammar of the hints that can be pronounced."""
    plain = (hint.lower() for hint in hints)
    said = [
        hint for hint in plain if _PLAIN.fullmatch(hint) and all(decoder.lookup_word(word) for word in hint.split())
    ]
    return "#JSGF V1.0;\ngrammar hints;\npublic <hint> = " + " | ".join(said) + ";\n"


@plugin.method("stt.start")
def start(params: SttStartParams) -> None:
    sessions[params.session] = []
    if params.hints != known:
        known[:] = params.hints
        decoder.add_jsgf_string("hints", grammar(known))
        decoder.activate_search("hints")


@plugin.notification("stt.feed")
def feed(params: SttFeedParams) -> None:
    if params.session in sessions:
        sessions[params.session].append(b64decode(params.data_b64))


@plugin.method("stt.finish")
def finish(params: SttSession) -> Transcript:
    samples = np.frombuffer(b"".join(sessions.pop(params.session)), dtype="<f4")
    decoder.start_utt()
    decoder.process_raw((samples.clip(-1, 1) * 32767).astype("<i2").tobytes(), full_utt=True)
    decoder.end_utt()
    heard = decoder.hyp()
    return Transcript(text=heard.hypstr if heard else "", audio_ms=len(samples) * 1000 // RATE)


@plugin.method("stt.cancel")
def cancel(params: SttSession) -> None:
    sessions.pop(params.session, None)


plugin.run()
