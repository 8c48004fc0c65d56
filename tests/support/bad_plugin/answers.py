"""What the plugin answers to each method, well or, with a defect, badly.

Rules here: one function for each method, whose name has `__` for the dot; params are its arguments.
"""
# ruff: noqa: ARG002 - the arguments are the params that the method has, whether they matter here or not

from __future__ import annotations

import sys
import time
from typing import Any

from wire import WITH

BUSY_S = 1.0


class RpcError(Exception):
    """What a request is answered with instead of a result."""

    def __init__(self, code: int, message: str, **data: Any) -> None:
        super().__init__(message)
        self.body = {"code": code, "message": message, **({"data": data} if data else {})}


class Stream:
    """One subscription."""

    def __init__(self, name: str, stream_id: str, mode: str, window: int) -> None:
        self.name, self.id, self.mode, self.window = name, stream_id, mode, window
        self.sent = 0
        self.acked = -1

    @property
    def may_send(self) -> bool:
        """Whether there is credit."""
        return self.mode == "lossy" or "overruns" in WITH or self.sent - self.acked <= self.window

    def next_item(self) -> dict[str, Any]:
        """The params of the next item."""
        data = {"txt": 1} if "bad-item" in WITH and self.name == "llm.delta" else ITEMS[self.name]
        seq = self.sent + ("from-one" in WITH)
        if "same-seq" in WITH and self.mode == "lossy":
            seq = 0
        self.sent += 1
        return {"stream_id": self.id, "seq": seq, "data": data}


PROVIDES = (
    "router.plan@1",
    "router.hints@1",
    "knowledge.catalog@1",
    "stt.transcribe@1",
    "action.invoke@1",
    "media.hold@1",
    "tts.speak@1",
    "llm.complete@1",
    "llm.choose@1",
    "context.snapshot@1",
    "context.live@1",
    "ui.render@1",
    "perception.screenshot@1",
    "perception.tree@1",
    "perception.text@1",
    "perception.tabs@1",
    "input.inject@1",
    "input.keys@1",
)
HELLO_DEFECTS: dict[str, Any] = {
    "version-two": lambda hello: hello.update(protocol="2.0"),
    "wrong-transport": lambda hello: hello.update(transport="listen"),
    "bad-name": lambda hello: hello["plugin"].update(name="Conformance Plugin"),
    "bad-kind": lambda hello: hello["plugin"].update(kind="toaster"),
    "bad-version": lambda hello: hello["plugin"].update(version="1"),
    "bad-capability": lambda hello: hello["provides"].append("router.plan"),
    "unknown-capability": lambda hello: hello["provides"].append("router.teleport@1"),
    "unknown-permission": lambda hello: hello["permissions"].append("everything"),
    "ring-only": lambda hello: hello["permissions"].append("microphone"),
    "wants-op": lambda hello: hello["provides"].append("action.media@1"),
}
OPS = [{"op": "greet", "side_effect": "none", "schema": {"type": "object", "properties": {"name": {"type": "string"}}}}]
ITEMS = {
    "context.live": {"window": {"app": "x"}},
    "llm.delta": {"text": "a"},
    "tts.audio": {"data_b64": "AAA=", "format": {"encoding": "s16le", "rate": 16000}},
    "own.ticks": 7,
}
SILENT = ("input.keys", "ui.event")


class Answers:
    """The methods, with what they remember."""

    def __init__(self, transport: str) -> None:
        self.transport = transport
        self.greeted = False
        self.sessions: set[str] = set()
        self.holds: set[str] = set()
        self.streams: dict[str, Stream] = {}
        self.count = 0
        names = (name for name in dir(self) if "__" in name and not name.startswith("_"))
        self.methods = {name.replace("__", "."): getattr(self, name) for name in names}

    def to(self, method: str, params: Any) -> Any:
        """The result of a request.

        Raises:
            RpcError: it is refused.
        """
        early = not self.greeted and method not in ("protocol.hello", "plugin.describe", "plugin.health")
        if early and "eager" not in WITH:
            raise RpcError(-32600, "protocol.hello comes first")
        function = self.methods.get(method)
        if function is None or ("hides" in WITH and method == "router.hints"):
            if "unknown-is-null" in WITH:
                return None
            raise RpcError(-32601, f"there is no method {method}", method=method)
        if not isinstance(params, dict):
            if "any-params" in WITH:
                return {}
            raise RpcError(-32602, "params are no object")
        if "strict-fields" in WITH and "x_conformance" in params:
            raise RpcError(-32602, "an unknown field", field="x_conformance")
        return self.call(function, params)

    def call(self, function: Any, params: dict[str, Any]) -> Any:
        """Call a method with those of the params that it knows."""
        code = function.__code__
        names = code.co_varnames[1 : code.co_argcount]
        needed = names[: len(names) - len(function.__defaults__ or ())]
        for name in needed:
            if name not in params:
                if "no-missing" in WITH:
                    return {}
                raise RpcError(-32602, f"{name} is missing", field=name)
        return function(**{name: value for name, value in params.items() if name in names})

    def ack(self, stream_id: str = "", seq: int = -1) -> None:
        """Take `stream.ack`."""
        if stream_id in self.streams and "no-credit" not in WITH:
            self.streams[stream_id].acked = max(self.streams[stream_id].acked, seq)

    def protocol__hello(self, protocol: str, abi: int, epoch: int = 0, settings: Any = None) -> Any:
        strange = protocol != "1.0" or abi != 1
        if "strict-settings" in WITH and settings is None:
            raise RpcError(-32602, "settings are missing", field="settings")
        if "refuses-minor" in WITH and strange:
            raise RpcError(-32004, "another version")
        if (
            ("dies-of-settings" in WITH and settings)
            or ("hello-once" in WITH and self.greeted)
            or ("dies-of-versions" in WITH and strange)
            or ("dies-of-major" in WITH and (not protocol.startswith("1.") or abi != 1))
        ):
            sys.exit(1)
        named = {"name": "conformance", "version": "1.0.0", "kind": "bundle"}
        hello = {"protocol": "1.0", "abi": 1, "plugin": named, "transport": self.transport}
        hello |= {"provides": [*PROVIDES], "requires": [], "permissions": []}
        if "epochs" in WITH:
            named["version"] = f"1.0.{epoch}"
        if "no-abi" in WITH:
            del hello["abi"]
        for defect in HELLO_DEFECTS.keys() & WITH:
            HELLO_DEFECTS[defect](hello)
        return hello

    def plugin__describe(self) -> Any:
        methods = sorted(self.methods)
        if "boasts" in WITH:
            methods.append("plugin.health")
        if "modest" in WITH:
            methods.remove("router.hints")
        if "no-handshake" in WITH:
            methods.remove("protocol.hello")
        if "no-effects" in WITH:
            methods.append("own.reset")
        if "no-stop" in WITH:
            methods.remove("stream.stop")
        return {"methods": methods, "streams": [*ITEMS, *SILENT]}

    def plugin__health(self) -> Any:
        return {"status": "fine" if "bad-health" in WITH else "ok", "detail": ""}

    def router__plan(self, utterance: str, context: Any = None) -> Any:
        if "busy" in WITH:
            time.sleep(BUSY_S)
        step = {"op": "greet", "args": {"name": "x"}, "provenance": "user"}
        if "bad-plan" in WITH:
            step["provenance"] = "trusted"
        return {"steps": [step], "score": 7 if "bad-score" in WITH else 1.0}

    def router__hints(self) -> Any:
        return {"phrases": "open" if "bad-hints" in WITH else ["open"]}

    def knowledge__catalog(self) -> Any:
        one = {"id": "a", "value": 1, "label": "A"}
        return {"candidates": [one, one] if "bad-catalog" in WITH else [one]}

    def stt__start(self, session: str, format: Any = None, hints: Any = (), language: str = "en") -> Any:  # noqa: A002
        self.sessions.add(session)
        if "bad-start" in WITH:
            return {"ring": "yes"}
        return {"ring": True} if {"boasts-of-ring", "ring-only"} & WITH else {}

    def stt__finish(self, session: str) -> Any:
        if session not in self.sessions and "any-session" not in WITH:
            raise RpcError(-32602, "no such session", field="session")
        if "keeps-sessions" not in WITH:
            self.sessions.discard(session)
        if "ring-only" in WITH:
            raise RpcError(-32602, "feed frames of the ring", field="data_b64")
        return {"text": "", "confidence": 2 if "bad-confidence" in WITH else 0.0}

    def stt__cancel(self, session: str) -> Any:
        if "strict-cancel" in WITH and session not in self.sessions:
            raise RpcError(-32602, "no such session", field="session")
        if "no-cancel" not in WITH:
            self.sessions.discard(session)
        return {}

    def action__capabilities(self) -> Any:
        if "bad-schema" in WITH:
            return {"ops": [{"op": "greet", "schema": {"type": "thing"}}]}
        if "bad-op" in WITH:
            return {"ops": [{"op": "Greet me"}]}
        return {"ops": OPS}

    def action__invoke(self, op: str, args: Any = None, provenance: str = "user") -> Any:
        if op.removeprefix("action.") != "greet" and "any-op" not in WITH:
            raise RpcError(-32602, "no such op", field="op")
        return {"ok": "yes" if "no-effects" in WITH else True, "detail": "Hello."}

    def media__hold(self, session: str = "") -> Any:
        if not session and "any-hold" not in WITH:
            raise RpcError(-32602, "session is missing", field="session")
        held = [] if self.holds else ["Demo"]
        self.holds.add(session)
        return {"held": held}

    def media__release(self, session: str) -> Any:
        known = session in self.holds
        self.holds.discard(session)
        last = known and not self.holds
        early = known and bool(self.holds) and "no-effects" in WITH
        return {"resumed": ["Demo"] if last or early or "resumes-strangers" in WITH else []}

    def tts__speak(self, text: str, voice: str = "") -> Any:
        if text and "no-effects" in WITH:
            return {"spoken": "no"}
        return {"spoken": bool(text) or "bad-speech" in WITH, "duration_ms": len(text)}

    def llm__complete(self, prompt: str) -> Any:
        return {"text": "yes", "finish": "bored" if "bad-finish" in WITH else "stop"}

    def llm__choose(self, utterance: str, context: Any = None, candidates: Any = ()) -> Any:
        if "bad-choice" in WITH:
            return {"choice_id": "none of these", "probability": 1.0}
        found = candidates[0]["id"] if candidates else None
        return {"choice_id": found, "probability": 1.0, "distribution": {found: 1.0} if found else {}}

    def context__snapshot(self, sources: Any = ()) -> Any:
        whole = {"window": {"app": "x", "title": "y"}, "workspace": "1"}
        if "secretive" in WITH and not sources:
            return {}
        return {name: value for name, value in whole.items() if not sources or name in sources or "chatty" in WITH}

    def perception__screenshot(self) -> Any:
        return {"handle": "file:///x.png" if "bad-handle" in WITH else "handle://" + "0" * 64, "width": 2, "height": 2}

    def perception__tree(self) -> Any:
        nodes = [{"id": "a", "role": "window"}, {"id": "b", "role": "button", "parent": "a"}]
        return {"nodes": nodes[::-1] if "bad-tree" in WITH else nodes}

    def perception__text(self, handle: str = "", region: Any = None) -> Any:
        return {"lines": [{"text": "x", "bounds": [0, 0, 1] if "bad-box" in WITH else [0, 0, 1, 1]}]}

    def perception__tabs(self) -> Any:
        return {"tabs": [{"title": "x"} if "bad-tab" in WITH else {"id": "1", "title": "x"}]}

    def input__inject(self, text: str = "", keys: Any = ()) -> Any:
        if bool(text) == bool(keys) and "any-keys" not in WITH:
            raise RpcError(-32602, "exactly one of text and keys", field="text")
        if "no-effects" in WITH:
            raise RpcError(-32603, "a defect")
        return {}

    def ui__render(self, view: Any, surface: str = "main") -> Any:
        return [] if "bad-render" in WITH or (view is not None and "no-effects" in WITH) else {}

    def stream__subscribe(self, method: str, params: Any = None, mode: str | None = None, window: int = 64) -> Any:
        if method not in ITEMS and method not in SILENT and "any-stream" not in WITH:
            raise RpcError(-32601, f"there is no stream {method}", method=method)
        self.count += 1
        mode = ("reliable" if method in SILENT else "lossy") if mode is None else mode
        stream_id = "only" if "one-id" in WITH else f"s{self.count}"
        self.streams[stream_id] = Stream(method, stream_id, "lossy" if "only-lossy" in WITH else mode, window)
        return {"stream_id": stream_id, "mode": self.streams[stream_id].mode}

    def stream__ack(self, stream_id: str, seq: int) -> Any:
        return {}

    def stream__stop(self, stream_id: str) -> Any:
        if "strict-stop" in WITH and stream_id not in self.streams:
            raise RpcError(-32602, "no such stream", field="stream_id")
        if "never-stops" not in WITH:
            self.streams.pop(stream_id, None)
        return {}
