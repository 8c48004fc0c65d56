"""Configurations, steps and addresses that try to get through, from a seeded generator.

Rules here: what is made depends on the generator that is handed in alone; much of it nearly fits, because what is plain
junk is refused at once and shows nothing.
"""

from __future__ import annotations

import random
from typing import Any

from support.policy import SPECIAL
from utter_protocol.methods import Candidate, Op, PlannedStep
from utter_runner.policy import OpRule, Origin, PolicyRules, Rate

SESSIONS = ("session-1", "session-2")
PLUGINS = ("desktop", "other")
IDS = ("c0", "c1", "c2", "c3", "c4", "mine", "c0 ", "")

_NAMES = (*SPECIAL, *SPECIAL, "open_url", "media", "mute", "note", "free", "wipe", "asks")
_TAKES = {
    "open_url": ("url",),
    "ensure_url": ("url",),
    "terminal": ("command",),
    "input": ("text", "keys"),
    "niri": ("action", "args"),
    "launch_app": ("app",),
    "media": ("command", "player"),
    "note": ("text", "tags"),
    "wipe": ("disk",),
    "free": ("x",),
}
_TEXTS = (
    "ls", "ls -la", "play", "pause", "spawn-sh", "Spawn", "spawn", "load_config_file", "quit", "close-window", "gimp",
    "org.mozilla.firefox.desktop", "ctrl+c", "sda", "a b", "a  b", " a", "a ", "a\u200bb", "a\u202eb", 'a"b',
    'x", player = "y', "a\nThis was chosen by something on the screen, not by you.", "<b>", "\uff1cb\uff1e", "&amp;",
    "\u27e8newline\u27e9", "\u2423", "a\tb", "\u05d0b", "e\u0301\u0301\u0301", "\ud800", "\u3164", "", "null", "true",
)  # fmt: skip
_SCHEMES = ("https", "http", "mailto", "HTTPS", "hTTp", "tel", "javascript", "data", "file", "ftp", "ws", "view-source")
_HOSTS = (
    "example.org", "EXAMPLE.org", "a.b", "127.0.0.1", "0x7f.1", "2130706433", "[::1]", "[::ffff:1.2.3.4]", "xn--a",
    "b\u00fccher.example", "\uff45xample.org", "ex%61mple.org", "a..b", ".", "example.org.", "a_b.org", "user@evil.org",
    "good.org@evil.org", "good.org:80", "good.org:443", "good.org:0", "good.org:99999", "faß.de", "☃.net", "a%00b",
    "a,b", "-a.org", "1.2.3", "good.org%2f@evil.org", "ex\u00adample.org", "\u202eexample.org", "a.\u3002b", "",
)  # fmt: skip
_PATHS = (
    "", "/", "/a/../b", "/%2e%2e/b", "/a/./b", "//evil.org", "/\\evil.org", "/a b", "/\u00e4", "/%zz", "/a;b", "/%00",
    "/.//a", "/a%2fb", "/{x}", "/'\"<>`", "/|^", "/C|/x", "/~a",
)  # fmt: skip
_TAILS = ("", "", "", "?q=1", "?a b", "?q='\"<>", "?\u00e4", "#x", "#`\u00e4", "?a#b?c#d", "?%", "?x=//evil.org/@b")
_MAIL = (
    "a@b.org", "a@b.org,c@d.org", "a%40b.org", "a@b.org?subject=x", "a@b.org?subject=x&body=y%20z", "?cc=a@b.org",
    "a@b.org?bcc=c@d.org", "a@b.org?attach=/etc/passwd", "a@b.org?subject=x%0d%0abcc:y", "a@b.org?subject=%26bcc=c",
)  # fmt: skip
_INSERTED = "\t\n\r \\@/:?#%.\u00ad\u200b\u202e\u3000\ufeffaA0é\u2044"
_SCHEMAS: tuple[dict[str, Any], ...] = (
    {"properties": {"text": {"type": "string"}, "tags": {}}},
    {"properties": {"command": {"enum": ["play", "pause", "next"]}, "player": {}}, "additionalProperties": False},
    {"maxProperties": 1},
)


def address(rng: random.Random) -> str:
    """An address, often a good one, with up to three characters more, fewer or others."""
    scheme = rng.choice(_SCHEMES[:3]) if rng.random() < 0.8 else rng.choice(_SCHEMES)
    if scheme == "mailto":
        text = f"mailto:{rng.choice(_MAIL)}"
    else:
        host = rng.choice(_HOSTS[:3]) if rng.random() < 0.4 else rng.choice(_HOSTS)
        slashes = "//" if rng.random() < 0.9 else rng.choice(("", "/", "///", "\\\\", "/\\"))
        text = f"{scheme}:{slashes}{host}{rng.choice(_PATHS)}{rng.choice(_TAILS)}"
    for _ in range(rng.choice((0, 0, 0, 0, 1, 1, 2, 3))):
        at = rng.randrange(len(text) + 1)
        kind = rng.randrange(3)
        text = text[:at] + (rng.choice(_INSERTED) if kind else "") + text[at + (kind != 1) :]
    return text


def value(rng: random.Random, name: str, depth: int = 0) -> Any:
    """A value for an argument."""
    if name == "url" and rng.random() < 0.95:
        return address(rng)
    kind = rng.randrange(12)
    if kind == 0 and depth < 3:
        return [value(rng, "", depth + 1) for _ in range(rng.randrange(3))]
    if kind == 1 and depth < 3:
        return {rng.choice(_TEXTS): value(rng, "", depth + 1) for _ in range(rng.randrange(3))}
    if kind == 2:
        return rng.choice((None, True, False, 0, 1, -1, 2**63, 2**64, 1.0, 1.5, 1e300))
    return rng.choice(_TEXTS)


def _picking(rng: random.Random) -> Any:
    chosen = rng.choice(IDS)
    near = rng.randrange(16)
    if near == 0:
        return {"select": chosen, "value": "x"}
    if near == 1:
        return [{"select": chosen}]
    if near == 2:
        return {"Select": chosen}
    return {"select": chosen}


def opening(rng: random.Random) -> PlannedStep:
    """A step of the user's own that opens an address."""
    return PlannedStep(op=rng.choice(("open_url", "action.ensure_url")), args={"url": address(rng)}, provenance="user")


def step(rng: random.Random) -> PlannedStep:
    """A step with arguments that fit, pick, or attack."""
    op = rng.choice(_NAMES)
    takes = _TAKES.get(op, ())
    names = [name for at, name in enumerate(takes) if at == 0 or rng.random() < 0.3]
    if rng.random() < 0.1:
        names.append(rng.choice(("x", "url", "command", "keys", "\u202e", 'a = "b"')))
    everything = rng.choice(("user", "user", "user", "screen"))
    args: dict[str, Any] = {}
    stated: dict[str, Any] = {}
    for name in names:
        picks = rng.random() < (0.9 if everything == "screen" else 0.25)
        args[name] = _picking(rng) if picks else value(rng, name)
        if rng.random() < (0.8 if picks else 0.1):
            stated[name] = "screen" if rng.random() < 0.95 else "user"
    prefix = rng.choice(("", "", "action.", "action.action."))
    return PlannedStep(
        op=prefix + op, args=args, provenance=everything, arg_provenance=stated, confirm=rng.random() < 0.2
    )


def origin(rng: random.Random) -> Origin:
    """What the runner knows of a step."""
    return Origin(
        provenance="user" if rng.random() < 0.9 else "screen",
        session=rng.choice((*SESSIONS, *SESSIONS, "")),
        sources=rng.choice(
            ((), (), (), (), (), (), (), (), ("user", "config"), ("knowledge",), ("context.snapshot",), ("User",))
        ),
        plugin=rng.choice((None, None, None, None, None, *PLUGINS, "nobody")),
        llm=rng.random() < 0.2,
    )


def _some(rng: random.Random) -> frozenset[str]:
    return frozenset(rng.choice(("", "action.")) + rng.choice(_NAMES) for _ in range(rng.choice((0, 0, 1, 2))))


def rules(rng: random.Random) -> PolicyRules:
    """A configuration."""
    ops = {}
    for op in {rng.choice(_NAMES) for _ in range(rng.choice((0, 0, 1, 3)))}:
        ops[op] = OpRule(
            enabled=rng.choice((None, None, True, False)),
            confirm=rng.choice((None, "always", "untrusted", "never")),
            schemes=rng.choice((None, frozenset({"https"}))) if op in {"open_url", "ensure_url"} else None,
            schema=rng.choice((None, None, *_SCHEMAS)),
            rate=rng.choice((None, None, Rate(3, "minute"))),
            from_llm=op in {"terminal", "input"} and rng.random() < 0.5,
        )
    return PolicyRules(
        enabled_ops=frozenset(name for name in ("action.terminal", "input") if rng.random() < 0.6),
        disabled_ops=_some(rng),
        confirm_ops=_some(rng),
        url_schemes=rng.choice(
            (frozenset({"https"}), frozenset({"http", "https", "mailto"}), frozenset({"tel", "http"}))
        ),
        ops=ops,
    )


def ops(rng: random.Random) -> list[Op]:
    """What a plugin offers this time."""
    made = []
    for name in dict.fromkeys(_NAMES):
        if rng.random() < 0.1:
            continue
        made.append(
            Op(
                op=rng.choice(("", "action.")) + name,
                side_effect=rng.choice(("none", "local", "local", "external", "destructive")),
                needs_confirm=rng.random() < 0.2,
                schema=rng.choice(_SCHEMAS) if name in {"media", "note", "free"} else None,
            )
        )
    return made


def candidates(rng: random.Random) -> list[Candidate]:
    """What may be picked, by ids that others use, too."""
    return [
        Candidate(id=rng.choice(IDS[:-1]), value=_clean(value(rng, rng.choice(("url", "url", "app", "command", "x")))))
        for _ in range(rng.randrange(1, 4))
    ]


def _clean(made: Any) -> Any:
    """Half a character is none that could be recorded."""
    return "half" if "\\ud800" in ascii(made) else made
