"""Checks: does the client API answer what the document says, as far as it can be asked without doing anything?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from utter_protocol.errors import ErrorCode
from utter_sdk.conformance.lab import decoded, refused, result_of
from utter_sdk.conformance.report import CheckFailed, NotApplicable
from utter_sdk.conformance.runner_lab import Table
from utter_sdk.conformance.runner_shapes import Devices, Explanation, Plugins, Status, Told, Validation

if TYPE_CHECKING:
    from utter_sdk.conformance.runner_lab import RunnerLab

RUNNER_API = Table()
_NOBODY = "conformance-nobody"
_NO_OP = "conformance.nothing"
_INVOKE = "runner.invoke"
_VALIDATE = "runner.validate_plugin"
_EXPLAIN = "policy.explain"
_SNAPSHOT = "context.snapshot"
_DEVICES = "audio.devices"
_CLOSE = "audio.close"
_MOST_PLUGINS = 50


@RUNNER_API.enter("api.status", "runner.status answers a whole status.", "runner.status", needs="access")
def _status(lab: RunnerLab) -> None:
    with lab.fresh() as second:
        lab.ask(second)
        status = decoded(result_of(lab.link().call("runner.status", {}), "runner.status"), Status, "runner.status")
        if status.clients < 2:  # noqa: PLR2004 - the two that are connected here
            raise CheckFailed(f"clients is {status.clients} while two of ours are connected", expected="2 or more")


@RUNNER_API.enter(
    "api.plugins",
    "runner.plugins answers a whole entry for each plugin, each id once.",
    "runner.plugins",
    needs="access",
)
def _plugins(lab: RunnerLab) -> None:
    link = lab.link()
    plugins = decoded(result_of(link.call("runner.plugins", {}), "runner.plugins"), Plugins, "runner.plugins").plugins
    ids = [one.id for one in plugins]
    if len(set(ids)) != len(ids):
        raise CheckFailed(f"an id stands twice: {ids}", expected="each id once")
    for one in plugins:
        if one.status in ("ready", "degraded") and (one.negotiated is None or one.epoch < 1):
            raise CheckFailed(f"{one.id} is {one.status} without versions or epoch", expected="what was negotiated")
    status = decoded(result_of(link.call("runner.status", {}), "runner.status"), Status, "runner.status")
    if [one.id for one in status.plugins] != ids:
        raise CheckFailed("runner.status lists other plugins", expected="the same plugins in the same order")


@RUNNER_API.enter(
    "api.validate", "runner.validate_plugin answers a whole verdict for each plugin.", _VALIDATE, needs="access"
)
def _validate(lab: RunnerLab) -> None:
    link = lab.link()
    names = [str(one["id"]) for one in lab.facts.plugins if isinstance(one.get("id"), str)][:_MOST_PLUGINS]
    if not names:
        raise NotApplicable("The runner has no plugins.")
    for name in names:
        verdict = decoded(result_of(link.call(_VALIDATE, {"plugin": name}), _VALIDATE), Validation, _VALIDATE)
        if verdict.ok and verdict.missing_requires:
            raise CheckFailed(f"{name} is in order and lacks {verdict.missing_requires}", expected="ok: false")
        if any(one.enforced == one.advisory for one in verdict.permissions):
            raise CheckFailed(
                f"a permission of {name} is both enforced and advisory, or neither", expected="exactly one of the two"
            )


@RUNNER_API.enter("api.unknown-plugin", "An unknown plugin is answered -32005.", _INVOKE, needs="access")
def _unknown_plugin(lab: RunnerLab) -> None:
    link = lab.link()
    refused(link.call(_VALIDATE, {"plugin": _NOBODY}), _VALIDATE, ErrorCode.CAPABILITY_MISSING)
    asked = {"plugin": _NOBODY, "method": "plugin.health"}
    refused(link.call(_INVOKE, asked), _INVOKE, ErrorCode.CAPABILITY_MISSING)


@RUNNER_API.enter("api.invalid-params", "Params that do not fit are answered -32602.", "Errors", needs="access")
def _invalid_params(lab: RunnerLab) -> None:
    link = lab.link()
    wrong: tuple[tuple[str, dict[str, Any]], ...] = (
        (_VALIDATE, {}),
        (_VALIDATE, {"plugin": 7}),
        (_INVOKE, {"plugin": _NOBODY}),
        (_INVOKE, {"plugin": _NOBODY, "method": 7}),
        (_EXPLAIN, {}),
        (_EXPLAIN, {"op": 7}),
        (_EXPLAIN, {"op": _NO_OP, "args": []}),
        (_EXPLAIN, {"op": _NO_OP, "provenance": "nobody"}),
        ("runner.command", {}),
        ("runner.command", {"utterance": 7}),
        ("runner.listen", {}),
        ("runner.listen", {"wav_b64": "not base64!"}),
    )
    for method, params in wrong:
        refused(link.call(method, params), f"{method} {params}", ErrorCode.INVALID_PARAMS)


@RUNNER_API.enter("api.invoke", "runner.invoke hands on a plugin's answer, result or error.", _INVOKE, needs="access")
def _invoke(lab: RunnerLab) -> None:
    link = lab.link()
    plugin = lab.running_plugin()
    health = result_of(link.call(_INVOKE, {"plugin": plugin, "method": "plugin.health"}), "plugin.health")
    if not isinstance(health, dict) or health.get("status") not in ("ok", "degraded"):
        raise CheckFailed(f"plugin.health of {plugin} was answered {health!r}", expected="{status, detail}")
    asked = {"plugin": plugin, "method": "conformance.nothing", "params": {}}
    refused(link.call(_INVOKE, asked), "a method that the plugin does not have", ErrorCode.METHOD_NOT_FOUND)


@RUNNER_API.enter(
    "api.timeout",
    "timeout_ms must be greater than 0; more than 60,000 counts as that.",
    "Cancellation and deadlines",
    needs="access",
)
def _timeout(lab: RunnerLab) -> None:
    link = lab.link()
    asked = {"plugin": lab.running_plugin(), "method": "plugin.health"}
    for wrong in (0, -1, "soon"):
        refused(link.call(_INVOKE, {**asked, "timeout_ms": wrong}), f"timeout_ms {wrong!r}", ErrorCode.INVALID_PARAMS)
    result_of(link.call(_INVOKE, {**asked, "timeout_ms": 10**9}), "plugin.health")


@RUNNER_API.enter(
    "api.forbidden-methods",
    "Methods that begin with protocol., input., media. or $/ cannot be called through runner.invoke: -32003.",
    _INVOKE,
    needs="access",
)
def _forbidden(lab: RunnerLab) -> None:
    link = lab.link()
    plugin = lab.running_plugin()
    for method in ("protocol.hello", "input.conformance", "media.conformance", "$/cancel"):
        refused(link.call(_INVOKE, {"plugin": plugin, "method": method}), method, ErrorCode.NOT_PERMITTED)


@RUNNER_API.enter(
    "api.gate",
    "action.invoke needs a provenance (-32003), and under screen nothing is authored (-32006).",
    _INVOKE,
    needs="access",
)
def _gate(lab: RunnerLab) -> None:
    link = lab.link()
    plugin = lab.running_plugin()

    def act(**params: Any) -> Any:
        # An op that nobody offers: nothing happens even where the runner is wrong.
        return link.call(_INVOKE, {"plugin": plugin, "method": "action.invoke", "params": {"op": _NO_OP, **params}})

    refused(act(args={}), "action.invoke without provenance", ErrorCode.NOT_PERMITTED)
    refused(act(args={}, provenance="user"), "an op that nobody offers", ErrorCode.CAPABILITY_MISSING)
    written = act(args={"text": "written by the screen"}, provenance="screen")
    refused(written, "an argument from the screen", ErrorCode.UNTRUSTED_PROVENANCE)
    mixed = act(args={"text": "x"}, provenance="user", arg_provenance={"text": "screen"})
    refused(mixed, "an argument from the screen in a step of the user", ErrorCode.UNTRUSTED_PROVENANCE)


_JUDGED: tuple[tuple[dict[str, Any], str], ...] = (
    ({"op": "terminal", "args": {"command": "true"}, "provenance": "screen"}, "command-from-screen"),
    ({"op": "action.terminal", "args": {"command": "true"}, "provenance": "screen"}, "command-from-screen"),
    ({"op": "input", "args": {"text": "x"}, "provenance": "screen"}, "command-from-screen"),
    ({"op": "open_url", "args": {"url": "https://example.org/"}, "provenance": "screen"}, "screen-authored-argument"),
    (
        {"op": "launch_app", "args": {"app": {"select": "conformance:none"}}, "provenance": "screen"},
        "unknown-candidate",
    ),
    ({"op": _NO_OP, "args": {}, "provenance": "user"}, "no-provider"),
    ({"op": "", "args": {}, "provenance": "user"}, "op-name"),
)


@RUNNER_API.enter(
    "api.explain", "policy.explain names the rule, and shows no arguments of what is denied.", _EXPLAIN, needs="access"
)
def _explain(lab: RunnerLab) -> None:
    link = lab.link()
    for params, rule in _JUDGED:
        answer = decoded(result_of(link.call(_EXPLAIN, params), _EXPLAIN), Explanation, _EXPLAIN)
        if (answer.decision, answer.rule, answer.args) != ("deny", rule, {}):
            raise CheckFailed(
                f"{params} is judged {answer.decision} by {answer.rule} with {answer.args}",
                expected=f"deny by {rule} with no arguments",
            )


@RUNNER_API.enter(
    "api.explain-url", "Addresses are read once and shown in their canonical form.", "Built-in ops", needs="access"
)
def _explain_url(lab: RunnerLab) -> None:
    link = lab.link()
    params = {"op": "open_url", "args": {"url": "HTTPS://Example.ORG:443/a/../b"}, "provenance": "user"}
    answer = decoded(result_of(link.call(_EXPLAIN, params), _EXPLAIN), Explanation, _EXPLAIN)
    if answer.rule in ("no-provider", "op-disabled"):
        raise NotApplicable("The runner opens no addresses.")
    if answer.args != {"url": "https://example.org/b"}:
        raise CheckFailed(f"the arguments are {answer.args}", expected='{"url": "https://example.org/b"}')
    for url in (
        "javascript:alert(1)",
        "https://user:word@example.org/",
        "https:///",
        "http://a b/",
        "file:///etc/passwd",
    ):
        params = {"op": "open_url", "args": {"url": url}, "provenance": "user"}
        answer = decoded(result_of(link.call(_EXPLAIN, params), _EXPLAIN), Explanation, _EXPLAIN)
        if answer.decision != "deny":
            raise CheckFailed(f"{url} is judged {answer.decision}", expected="deny")


@RUNNER_API.enter(
    "api.context",
    "context.snapshot answers fields, and in meta for each who told it, with screen provenance.",
    _SNAPSHOT,
    needs="access",
)
def _context(lab: RunnerLab) -> None:
    answer = lab.link().call(_SNAPSHOT, {})
    if answer.code == ErrorCode.METHOD_NOT_FOUND:
        raise NotApplicable("The runner has no context.")
    context = decoded(result_of(answer, _SNAPSHOT), dict[str, Any], _SNAPSHOT)
    meta = decoded(context.pop("meta", None), dict[str, Told], f"meta of {_SNAPSHOT}")
    if set(meta) != set(context):
        raise CheckFailed(f"meta is about {sorted(meta)}, the fields are {sorted(context)}", expected="the same names")


@RUNNER_API.enter(
    "api.audio-devices",
    "audio.devices lists each microphone and each output once, and at most one of each as chosen and as the default.",
    _DEVICES,
    needs="access",
)
def _devices(lab: RunnerLab) -> None:
    answer = lab.link().call(_DEVICES, {})
    if answer.code == ErrorCode.METHOD_NOT_FOUND:
        raise NotApplicable("The runner lists no devices.")
    devices = decoded(result_of(answer, _DEVICES), Devices, _DEVICES)
    for what, found in (("inputs", devices.inputs), ("outputs", devices.outputs)):
        names = [one.name for one in found]
        if len(set(names)) != len(names):
            raise CheckFailed(f"a name of {what} stands twice: {names}", expected="each name once")
        if sum(one.chosen for one in found) > 1 or sum(one.default for one in found) > 1:
            raise CheckFailed(f"several of {what} are chosen, or the default", expected="at most one of each")


@RUNNER_API.enter(
    "api.audio-close",
    "audio.close without audio.open does nothing, and is answered.",
    "audio.open, audio.close",
    needs="access",
)
def _close_audio(lab: RunnerLab) -> None:
    link = lab.link()
    answer = link.call(_CLOSE, {})
    if answer.code == ErrorCode.METHOD_NOT_FOUND:
        raise NotApplicable("The runner opens no microphone for clients.")
    for message in (answer, link.call(_CLOSE, {})):
        if result_of(message, _CLOSE) != {}:
            raise CheckFailed(f"{_CLOSE} was answered {message.result!r}", expected="{}")
