"""What `[policy]` and its tables for single ops cannot say together.

Rules here: functions of what was read; a key that contradicts another one, or that can mean nothing where it stands, is
a problem, and one that changes nothing is a warning. The policy refuses the same things; here they get their place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from utter_protocol.json_schema import SchemaError, compile_schema

from .schema import FORBIDDEN_SCHEMES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .schema import OpConfig, PolicyConfig

    Place = tuple[str | int, ...]

# Ops of which the policy knows what they are; a test compares the two.
URL_OPS = frozenset({"open_url", "ensure_url"})
COMMAND_OPS = frozenset({"terminal", "input"})

_NEVER = "it runs code or reads local files"


def policy_problems(policy: PolicyConfig) -> Iterator[tuple[Place, str]]:
    """Yield the key and a sentence for everything that is wrong."""
    for scheme in sorted(FORBIDDEN_SCHEMES.intersection(policy.url_schemes)):
        text = f"[policy] url_schemes names '{scheme}', which can never be opened: {_NEVER}."
        yield ("policy", "url_schemes"), text
    enabled, disabled, asking = (
        {*map(_bare, names)} for names in (policy.enabled_ops, policy.disabled_ops, policy.confirm_ops)
    )
    for op in sorted(enabled & disabled):
        yield ("policy", "disabled_ops"), f"[policy] enabled_ops and disabled_ops both name '{op}'."
    seen: dict[str, str] = {}
    for name, said in policy.ops.items():
        op, here, shown = _bare(name), ("policy", "ops", name), f"[policy.ops.{name}]"
        if seen.setdefault(op, name) != name:
            yield here, f"{shown} is the same op as [policy.ops.{seen[op]}]."
        if said.enabled is True and op in disabled:
            yield (*here, "enabled"), f"{shown} enabled is true, but [policy] disabled_ops names '{op}'."
        if said.enabled is False and op in enabled:
            yield (*here, "enabled"), f"{shown} enabled is false, but [policy] enabled_ops names '{op}'."
        if said.confirm not in {None, "always"} and op in asking:
            yield (
                (*here, "confirm"),
                f'{shown} confirm is "{said.confirm}", but [policy] confirm_ops names \'{op}\', which is "always".',
            )
        if said.from_llm and op not in COMMAND_OPS:
            text = (
                f"{shown} from_llm is for terminal and input only: a language model may plan every other op as it is."
            )
            yield (*here, "from_llm"), text
        if said.spoken and op in COMMAND_OPS:
            yield (
                (*here, "spoken"),
                f"{shown} spoken is true, but what runs commands or types is never confirmed by voice.",
            )
        yield from _schemes(here, shown, op, said, policy)
        yield from _schema(here, shown, said)


def policy_warnings(policy: PolicyConfig) -> Iterator[tuple[Place, str]]:
    """Yield the key and a sentence for what is allowed and does nothing."""
    for name, said in policy.ops.items():
        if said.confirm == "never" and _bare(name) in URL_OPS | COMMAND_OPS:
            why = "always asks" if _bare(name) in COMMAND_OPS else "reaches outside, so what asks first goes on asking"
            yield (
                ("policy", "ops", name, "confirm"),
                f'[policy.ops.{name}] confirm = "never" changes nothing: it {why}.',
            )


def _schemes(here: Place, shown: str, op: str, said: OpConfig, policy: PolicyConfig) -> Iterator[tuple[Place, str]]:
    if said.schemes is None:
        return
    place = (*here, "schemes")
    if op not in URL_OPS:
        yield place, f"{shown} schemes is for open_url and ensure_url only: '{op}' opens no addresses by itself."
        return
    for scheme in sorted(set(said.schemes)):
        if scheme in FORBIDDEN_SCHEMES:
            yield place, f"{shown} schemes names '{scheme}', which can never be opened: {_NEVER}."
        elif scheme not in policy.url_schemes:
            text = f"{shown} schemes names '{scheme}', which [policy] url_schemes does not: an op can only open fewer."
            yield place, text


def _schema(here: Place, shown: str, said: OpConfig) -> Iterator[tuple[Place, str]]:
    if said.schema is None:
        return
    try:
        compile_schema(said.schema)
    except SchemaError as error:
        yield (*here, "schema", *error.key), f"{shown} schema {error}."


def _bare(op: str) -> str:
    while op.startswith("action."):
        op = op.removeprefix("action.")
    return op
