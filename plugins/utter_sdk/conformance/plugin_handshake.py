"""Checks: does the plugin say who it is, whatever the runner says, and does that agree with its manifest?"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from utter_protocol import ABI, PROTOCOL
from utter_protocol.capabilities import MAX_DECLARED, CapabilityError, load_registry, parse_capability
from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.manifest import ID_PATTERN, PERMISSIONS, Manifest
from utter_protocol.methods import DescribeResult, HelloResult, PluginKind
from utter_protocol.versions import negotiate, parse_protocol
from utter_sdk.conformance.friendly import CASES, HANDSHAKE
from utter_sdk.conformance.lab import Table, decoded, refused, result_of
from utter_sdk.conformance.report import CheckFailed, NotApplicable
from utter_sdk.conformance.wire import MISSING

if TYPE_CHECKING:
    from utter_sdk.conformance.lab import Lab

HANDSHAKES = Table()
_SECTION = "protocol.hello"
_FAR_EPOCH = 2**31 + 7


@HANDSHAKES.enter(
    "hello.answered",
    "The three requests of the handshake are answered, the last two sent together.",
    "The handshake",
    alone=True,
)
def _answered(lab: Lab) -> None:
    with lab.fresh():
        pass


def _hello(lab: Lab) -> HelloResult:
    try:
        return msgspec.convert(lab.facts.hello, HelloResult)
    except msgspec.ValidationError:
        raise NotApplicable("The answer to protocol.hello has another shape.") from None


@HANDSHAKES.enter("hello.shape", "The answer to protocol.hello has the fields that it must have.", _SECTION)
def _shape(lab: Lab) -> None:
    decoded(lab.facts.hello, HelloResult, "the result of protocol.hello")


@HANDSHAKES.enter(
    "hello.versions", f"Its versions are well-formed, and go with protocol {PROTOCOL} and ABI {ABI}.", "Versions"
)
def _versions(lab: Lab) -> None:
    hello = _hello(lab)
    try:
        parse_protocol(hello.protocol)
        negotiate(PROTOCOL, ABI, hello.protocol, hello.abi)
    except (ValueError, RpcError) as error:
        why = error.message if isinstance(error, RpcError) else str(error)
        raise CheckFailed(why, expected=f"protocol {PROTOCOL}, abi {ABI}") from None


@HANDSHAKES.enter("hello.identity", "It has a name, a semantic version and a kind that the protocol knows.", "Manifest")
def _identity(lab: Lab) -> None:
    plugin = _hello(lab).plugin
    if not re.fullmatch(ID_PATTERN, plugin.name):
        raise CheckFailed(f"the name {plugin.name!r} is not the id of a plugin", expected=f"a name like {ID_PATTERN}")
    kinds = get_args(PluginKind)
    if plugin.kind not in kinds:
        raise CheckFailed(f"the kind {plugin.kind!r} is unknown", expected=f"one of {', '.join(kinds)}")
    try:
        fields = {"name": "xx", "kind": "bundle", "protocol": PROTOCOL, "abi": ABI, "runtime": "subprocess"}
        more = {"transport": "stdio", "entrypoint": ["x"], "version": plugin.version}
        msgspec.convert({**fields, **more}, Manifest)
    except msgspec.ValidationError:
        raise CheckFailed(f"the version {plugin.version!r} is not semantic", expected="such as 0.1.0") from None


@HANDSHAKES.enter(
    "hello.capabilities",
    "Each capability that it declares is well-formed, and there are at most 256 in a list.",
    "Capabilities",
)
def _capabilities(lab: Lab) -> None:
    hello = _hello(lab)
    for name, declared in (("provides", hello.provides), ("requires", hello.requires)):
        if len(declared) > MAX_DECLARED:
            raise CheckFailed(f"{name} has {len(declared)} capabilities", expected=f"at most {MAX_DECLARED}")
        for one in declared:
            try:
                parse_capability(one)
            except CapabilityError as error:
                raise CheckFailed(f"{name}: {error}", expected="name@N") from None


def _is_capability(text: str) -> bool:
    try:
        parse_capability(text)
    except CapabilityError:
        return False
    return True


@HANDSHAKES.enter(
    "hello.known", "Every capability and permission that it declares is known.", "Capabilities", level="should"
)
def _known(lab: Lab) -> None:
    hello = _hello(lab)
    findings = load_registry().classify(filter(_is_capability, (*hello.provides, *hello.requires)))
    if findings.warnings:
        raise CheckFailed(findings.warnings[0], expected="capabilities of the registry, or experimental/<Name>@N")
    unknown = [one for one in hello.permissions if one not in PERMISSIONS]
    if unknown:
        raise CheckFailed(f"the permission {unknown[0]!r} is unknown", expected=f"one of {', '.join(PERMISSIONS)}")


@HANDSHAKES.enter("hello.transport", "It names the transport that is in use.", _SECTION, level="should")
def _transport(lab: Lab) -> None:
    said, used = _hello(lab).transport, lab.subject.transport
    if said != used:
        raise CheckFailed(f"it says {said}", expected=used)


@HANDSHAKES.enter(
    "manifest.identity", "Manifest and handshake name the same name, version, kind, protocol and ABI.", "Manifest"
)
def _manifest(lab: Lab) -> None:
    manifest, hello = _both(lab)
    pairs = {
        "name": (manifest.name, hello.plugin.name),
        "version": (manifest.version, hello.plugin.version),
        "kind": (manifest.kind, hello.plugin.kind),
        "protocol": (manifest.protocol, hello.protocol),
        "abi": (manifest.abi, hello.abi),
    }
    for name, (written, said) in pairs.items():
        if written != said:
            raise CheckFailed(f"the manifest says {name} {written!r}, and the handshake {said!r}", expected="the same")


@HANDSHAKES.enter(
    "manifest.lists",
    "Manifest and handshake declare the same capabilities and permissions.",
    "Manifest",
    level="should",
)
def _manifest_lists(lab: Lab) -> None:
    manifest, hello = _both(lab)
    for name in ("provides", "requires", "permissions"):
        written, said = set(getattr(manifest, name)), set(getattr(hello, name))
        if written != said:
            different = ", ".join(sorted(written ^ said))
            raise CheckFailed(f"{name} of the manifest and of the handshake differ in {different}", expected="the same")


def _both(lab: Lab) -> tuple[Manifest, HelloResult]:
    if lab.subject.manifest is None:
        raise NotApplicable("There is no manifest.")
    return lab.subject.manifest, _hello(lab)


@HANDSHAKES.enter(
    "hello.alone", "Until it has answered protocol.hello it sends nothing of its own.", "The handshake", alone=True
)
def _alone(lab: Lab) -> None:
    with lab.start() as link:
        link.quiet()
        if link.messages or link.faults:
            raise CheckFailed("it spoke first", expected="nothing")
        # Whoever works on one request at a time has had its chance to say something when this one is answered.
        request_id = link.request("plugin.health", {})
        link.answer(request_id, "plugin.health before protocol.hello", lab.limits.handshake)
        early = [fault for fault in link.faults if fault.kind == "early"]
        if early:
            raise CheckFailed(early[0].text, expected="nothing but answers")


@HANDSHAKES.enter(
    "hello.first", "What comes before protocol.hello is answered -32600.", "The handshake", level="should", alone=True
)
def _first(lab: Lab) -> None:
    method = next((name for name in lab.facts.methods if name in CASES), "action.capabilities")
    with lab.start() as link:
        answer = link.answer(link.request(method, CASES[method].params), method, lab.limits.handshake)
        refused(answer, f"{method} before protocol.hello", ErrorCode.INVALID_REQUEST)
        lab.greet(link)


@HANDSHAKES.enter("hello.again", "A second protocol.hello is answered, and it goes on.", _SECTION, alone=True)
def _again(lab: Lab) -> None:
    with lab.fresh() as link:
        link.call("protocol.hello", lab.hello(epoch=2))
        link.barrier()


@HANDSHAKES.enter(
    "hello.unknown-fields", "Fields of protocol.hello that it does not know are ignored.", "Conventions", alone=True
)
def _unknown_fields(lab: Lab) -> None:
    with lab.start() as link:
        answer = lab.say_hello(link, x_conformance={"a": [1]}, features=["later"])
        result_of(answer, "protocol.hello with unknown fields")
        link.barrier()


@HANDSHAKES.enter(
    "hello.settings-absent", "protocol.hello without settings counts as with empty ones.", _SECTION, alone=True
)
def _settings_absent(lab: Lab) -> None:
    answers = []
    settings: Any
    for settings in ({}, MISSING):
        with lab.start() as link:
            answers.append(lab.say_hello(link, settings=settings))
            link.barrier()
    if answers[0].code is None:
        result_of(answers[1], "protocol.hello without settings")
    else:
        refused(answers[1], "protocol.hello without settings", answers[0].code)


@HANDSHAKES.enter(
    "hello.settings-unknown",
    "A setting that it does not know is ignored, or refused with -32602 and its name.",
    _SECTION,
    alone=True,
)
def _settings_unknown(lab: Lab) -> None:
    settings = {**lab.subject.settings, "x_conformance": {"a": [1, None, "ü"]}}
    with lab.start() as link:
        _settled(lab.say_hello(link, settings=settings), "an unknown setting")
        link.barrier()


def _settled(answer: Any, what: str) -> None:
    """Settings that a plugin cannot work with are refused in one way."""
    if answer.code is None:
        return
    refused(answer, what, ErrorCode.INVALID_PARAMS)
    if not isinstance((answer.error.get("data") or {}).get("field"), str):
        raise CheckFailed(f"{what} is refused, and data.field does not name the setting", expected="data.field")


@HANDSHAKES.enter(
    "hello.epoch", "It answers in any epoch, and the same in each.", "The life of an instance", alone=True
)
def _epoch(lab: Lab) -> None:
    with lab.start() as link:
        answer = lab.say_hello(link, epoch=_FAR_EPOCH)
        said = result_of(answer, f"protocol.hello with the epoch {_FAR_EPOCH}")
        if said != lab.facts.hello:
            raise CheckFailed("it answers otherwise than in the epoch 1", expected=str(lab.facts.hello))


@HANDSHAKES.enter(
    "hello.newer-minor",
    "A runner of a later minor version is answered with what the plugin speaks.",
    "Versions",
    alone=True,
)
def _newer_minor(lab: Lab) -> None:
    major = parse_protocol(PROTOCOL).major
    with lab.start() as link:
        answer = lab.say_hello(link, protocol=f"{major}.99")
        said = result_of(answer, f"protocol.hello of a runner of {major}.99")
        if said != lab.facts.hello:
            raise CheckFailed(f"it answers otherwise than to a runner of {PROTOCOL}", expected=str(lab.facts.hello))


@HANDSHAKES.enter(
    "hello.other-major",
    "A runner of another major version or ABI is answered: with what it speaks, or with -32004.",
    "Versions",
    alone=True,
)
def _other_major(lab: Lab) -> None:
    for members in ({"protocol": "9.0"}, {"abi": ABI + 98}):
        with lab.start() as link:
            answer = lab.say_hello(link, **members)
            if answer.code is not None:
                refused(answer, f"protocol.hello with {members}", ErrorCode.INCOMPATIBLE)


@HANDSHAKES.enter(
    "describe.shape", "The answer to plugin.describe lists methods and streams, each once.", "plugin.describe"
)
def _describe(lab: Lab) -> None:
    described = decoded(lab.facts.description, DescribeResult, "the result of plugin.describe")
    for name, listed in (("methods", described.methods), ("streams", described.streams)):
        twice = [one for one in listed if listed.count(one) > 1]
        if twice:
            raise CheckFailed(f"{name} has {twice[0]!r} twice", expected="each name once")


@HANDSHAKES.enter(
    "describe.handshake", "plugin.describe lists the requests of the handshake, too.", "plugin.describe", level="should"
)
def _describe_handshake(lab: Lab) -> None:
    for method in HANDSHAKE:
        if not lab.lists(method):
            raise CheckFailed(f"{method} is not listed", expected=f"{method} in methods")
