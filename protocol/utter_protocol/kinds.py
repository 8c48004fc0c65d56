"""Typed payloads of the kinds llm, context, perceive, input, media, tts and ui (PROTOCOL.md, "Methods").

Rules here: as in `methods`: one Struct per params, result or stream item; unknown fields are ignored on input; every
default and bound is the one PROTOCOL.md states.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from utter_protocol.methods import Candidate  # noqa: TC001 - msgspec resolves the annotations at run time

MAX_CANDIDATES = 256
"""How many candidates `llm.choose` gets at most."""

# ---- llm


class LlmCompleteParams(msgspec.Struct, kw_only=True):
    """`llm.complete`, and the params of the stream `llm.delta`. `max_tokens` counts what is written, not the prompt."""

    prompt: str
    system: str = ""
    max_tokens: Annotated[int, Meta(ge=1, le=131_072)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    stop: Annotated[list[str], Meta(max_length=16)] = []


class LlmCompleteResult(msgspec.Struct, kw_only=True):
    """Answer to `llm.complete`. `finish` says why it ends; `tokens` how many were written, if the model counts."""

    text: str
    finish: Literal["stop", "length"] = "stop"
    tokens: int | None = None


class LlmDelta(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An item of the stream `llm.delta`: what has been written since the last one; the last item has `finish`."""

    text: str
    finish: Literal["stop", "length"] | None = None


class LlmChooseParams(msgspec.Struct, kw_only=True):
    """`llm.choose`: which of the candidates does the utterance mean?"""

    utterance: str
    context: dict[str, Any] = {}
    candidates: Annotated[list[Candidate], Meta(max_length=MAX_CANDIDATES)] = []


class LlmChooseResult(msgspec.Struct, kw_only=True):
    """Answer to `llm.choose`. `choice_id` is the id of one candidate, or None for none of them."""

    choice_id: str | None = None
    probability: Annotated[float, Meta(ge=0, le=1)] = 0.0
    distribution: dict[str, float] = {}


# ---- context


class SnapshotParams(msgspec.Struct, kw_only=True):
    """`context.snapshot`. `sources` names fields; none means all."""

    sources: list[str] = []


class ContextChanged(msgspec.Struct, kw_only=True):
    """The announcement `context.changed`: fields with their new values; None takes a field away."""

    context: dict[str, Any]


# ---- perceive

Box = Annotated[list[float], Meta(min_length=4, max_length=4)]
"""x, y, width, height in logical pixels."""


class ScreenshotParams(msgspec.Struct, kw_only=True):
    """`perception.screenshot`. Without `output` and `region` the whole desktop."""

    output: str = ""
    region: Box | None = None


class ScreenshotResult(msgspec.Struct, kw_only=True):
    """Answer to `perception.screenshot`: a PNG behind a handle, with its size in pixels."""

    handle: str
    width: int
    height: int


class TreeParams(msgspec.Struct, kw_only=True):
    """`perception.tree`. `app` is a desktop file's id; empty means the focused application."""

    app: str = ""


class TreeNode(msgspec.Struct, kw_only=True):
    """A node of the accessibility tree. `parent` is the id of another node, or None for a root."""

    id: str
    role: str
    name: str = ""
    parent: str | None = None
    bounds: Box | None = None


class TreeResult(msgspec.Struct, kw_only=True):
    """Answer to `perception.tree`: parents come before their children."""

    nodes: list[TreeNode] = []


class TextParams(msgspec.Struct, kw_only=True):
    """`perception.text`: of a picture by its handle, or of a region of the screen; exactly one of them."""

    handle: str = ""
    region: Box | None = None


class TextLine(msgspec.Struct, kw_only=True):
    """A recognised line."""

    text: str
    bounds: Box | None = None


class TextResult(msgspec.Struct, kw_only=True):
    """Answer to `perception.text`, in reading order."""

    lines: list[TextLine] = []


class Tab(msgspec.Struct, kw_only=True):
    """A tab of the browser."""

    id: str
    title: str = ""
    url: str = ""
    active: bool = False


class TabsResult(msgspec.Struct, kw_only=True):
    """Answer to `perception.tabs {}`."""

    tabs: list[Tab] = []


# ---- input


class InjectParams(msgspec.Struct, kw_only=True, omit_defaults=True):
    """`input.inject`: a text to type, or chords to press one after the other; exactly one of them."""

    text: str = ""
    keys: list[str] = []


class KeyItem(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An item of the stream `input.keys`: a push-to-talk key of the plugin's own went down or up.

    `at` is a frame of the audio ring before which nothing belongs to the session that the key opens.
    """

    key: Literal["push_to_talk", "toggle", "listen", "cancel"]
    pressed: bool
    at: Annotated[int, Meta(ge=0)] | None = None


# ---- media


class MediaSession(msgspec.Struct, kw_only=True):
    """`media.hold` and `media.release`."""

    session: Annotated[str, Meta(min_length=1)]


class MediaHeld(msgspec.Struct, kw_only=True):
    """Answer to `media.hold`: the players that were paused by it, by their names for people."""

    held: list[str]


class MediaResumed(msgspec.Struct, kw_only=True):
    """Answer to `media.release`: the players that play again."""

    resumed: list[str]


# ---- tts


class SpeechFormat(msgspec.Struct, kw_only=True, frozen=True):
    """PCM, little-endian, channels interleaved."""

    encoding: Literal["s16le", "f32le"]
    rate: Annotated[int, Meta(ge=8_000, le=192_000)]
    channels: Annotated[int, Meta(ge=1, le=2)] = 1


class SpeechItem(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An item of the stream `tts.audio`: whole frames in base64. The first item states the format."""

    data_b64: str
    format: SpeechFormat | None = None


class SpeakResult(msgspec.Struct, kw_only=True):
    """Answer to `tts.speak`. `spoken` is false when the text held nothing to say, or was cut short."""

    spoken: bool = True
    duration_ms: int | None = None


# ---- ui

UiType = Literal["column", "row", "text", "button", "progress", "input"]
MAX_UI_NODES = 1_000
"""How many nodes a view has at most."""
MAX_UI_DEPTH = 32
"""How deep a view nests at most."""


class UiNode(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A node of a declarative view. `value` is from 0 to 1 for `progress`, a text for `input`."""

    type: UiType
    id: str = ""
    text: str = ""
    value: float | str | None = None
    enabled: bool = True
    children: list[UiNode] = []


class RenderParams(msgspec.Struct, kw_only=True):
    """`ui.render`. `surface` names the view, so that it can be replaced; a `view` of None takes it away."""

    view: UiNode | None
    surface: str = "main"


class UiEvent(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An item of the stream `ui.event`: a node with an `id` was pressed, changed, or the surface was closed."""

    surface: str = "main"
    id: str = ""
    event: Literal["press", "change", "close"]
    value: str | None = None


def view_problem(view: UiNode) -> str:
    """Why a view is too large to be drawn, in one sentence; empty when it is not."""
    todo, count = [(view, 1)], 0
    while todo:
        node, depth = todo.pop()
        count += 1
        if count > MAX_UI_NODES:
            return f"The view has more than {MAX_UI_NODES} nodes."
        if depth > MAX_UI_DEPTH:
            return f"The view nests more than {MAX_UI_DEPTH} levels deep."
        todo += [(child, depth + 1) for child in node.children]
    return ""


# ---- stt that decides by itself


class SttResult(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The announcement `stt.final`: the text of an open session, before or instead of the answer to `stt.finish`."""

    session: str
    text: str
    confidence: float | None = None


class SttPartial(msgspec.Struct, kw_only=True):
    """The announcement `stt.partial`: the whole text so far."""

    session: str
    text: str
