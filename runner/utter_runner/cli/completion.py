"""Completion in the shell: the scripts for bash, zsh and fish, and the words that they ask `utter` for.

Rules here: it runs at each press of the tab key, so the commands are read from a file that is generated from them
(`commands.json`), typer is not imported, and the runner is asked only for what only it knows, and for a moment. What
goes wrong completes nothing, and says nothing.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ASK = "__complete"
"""`utter __complete WORD...` prints what the last of the words may become, one candidate on a line."""
FILES = ":files"
"""What it prints when the shell knows better: a path."""
TREE = "commands.json"
_ASK_SECONDS = 1.0
_PATHS = frozenset({"PATH", "[PATH]", "FILE", "WAV", "DIR", "SOCKET", "PLUGIN...", "SOURCE"})

_BASH = """\
# Completion of utter for bash. To have it: utter completion bash > ~/.local/share/bash-completion/completions/utter
_utter() {
    local IFS=$'\\n' line
    COMPREPLY=()
    while IFS= read -r line; do
        if [ "$line" = ":files" ]; then
            compopt -o default -o filenames 2>/dev/null
            return
        fi
        COMPREPLY+=("$(printf '%q' "$line")")
    done < <("${COMP_WORDS[0]}" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -F _utter utter
"""
_ZSH = """\
#compdef utter
# Completion of utter for zsh. To have it: utter completion zsh > DIRECTORY/_utter, with a DIRECTORY of $fpath
_utter() {
    local -a found
    found=("${(@f)$("${words[1]}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ "${found[1]}" == ":files" ]]; then
        _files
    elif [[ -n "${found[1]}" ]]; then
        compadd -a found
    fi
}
if [[ "${funcstack[1]}" == "_utter" ]]; then
    _utter "$@"
else
    compdef _utter utter
fi
"""
_FISH = """\
# Completion of utter for fish. To have it: utter completion fish > ~/.config/fish/completions/utter.fish
function __utter_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l found ($words[1] __complete $words[2..-1] 2>/dev/null)
    if test "$found[1]" = ":files"
        __fish_complete_path (commandline -ct)
    else
        printf '%s\\n' $found
    end
end
complete -c utter -f -a '(__utter_complete)'
"""
SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def answer(words: Sequence[str]) -> int:
    """Print the candidates for the last of `words`, which come after `utter`; return the exit code, which is 0."""
    with suppress(Exception, KeyboardInterrupt):
        sys.stdout.reconfigure(errors="ignore")  # type: ignore[union-attr] # what is no TextIOWrapper is not written to
        print("\n".join(word for word in candidates(_joined(words), os.environ) if word.isprintable()))
    return 0


def candidates(words: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """What the last of `words` may become, or `[FILES]`."""
    word = words[-1] if words else ""
    node, path, given, wanted = _walk(words[:-1])
    if wanted is None and word.startswith("-"):
        return _starting(word, [max(p["names"], key=len) for p in node["parameters"] if p["names"]] + ["--help"])
    if wanted is None and node["commands"]:
        return _starting(word, node["commands"])
    if wanted is None:
        wanted = _argument(node, len(given))
    if wanted is None:
        return []
    if wanted["choices"]:
        return _starting(word, wanted["choices"])
    if wanted["metavar"] in _PATHS:
        return [FILES]
    return _starting(word, _values(wanted["metavar"], path, given, environ))


def _walk(words: Sequence[str]) -> tuple[Mapping[str, Any], list[str], list[str], Mapping[str, Any] | None]:
    """Where words lead: the command, its name, its arguments so far, and the option whose value comes next."""
    node: Mapping[str, Any] = _tree()
    path: list[str] = []
    given: list[str] = []
    wanted: Mapping[str, Any] | None = None
    for word in words:
        if wanted is not None:
            wanted = None
        elif word.startswith("-") and word != "-":
            wanted = next((p for p in node["parameters"] if word in p["names"] and p["metavar"]), None)
        elif word in node["commands"] and not given:
            node = node["commands"][word]
            path.append(word)
        else:
            given.append(word)
    return node, path, given, wanted


def _argument(node: Mapping[str, Any], at: int) -> Mapping[str, Any] | None:
    arguments: list[Mapping[str, Any]] = [one for one in node["parameters"] if not one["names"]]
    if at < len(arguments):
        return arguments[at]
    return arguments[-1] if arguments and arguments[-1]["multiple"] else None


def _tree() -> Mapping[str, Any]:
    import json  # noqa: PLC0415 - only here
    from pathlib import Path  # noqa: PLC0415 - see above

    found: Mapping[str, Any] = json.loads(Path(__file__).with_name(TREE).read_text("utf-8"))
    return found


def _joined(words: Sequence[str]) -> list[str]:
    """`--option=value` as bash hands it over, in three words, and as others do, in one: always as two words."""
    made: list[str] = []
    for at, word in enumerate(words):
        if word == "=" and made and made[-1].startswith("--"):
            if at == len(words) - 1:
                made.append("")
        elif word.startswith("--") and "=" in word:
            made += word.split("=", 1)
        else:
            made.append(word)
    return made


def _starting(word: str, names: Any) -> list[str]:
    return sorted({name for name in names if name.startswith(word)})


def _values(metavar: str, path: list[str], given: list[str], environ: Mapping[str, str]) -> Iterator[str]:
    if metavar in {"ID", "[PLUGIN]", "PLUGIN"}:
        yield from _plugins(environ)
    elif metavar == "OP":
        yield from (one["op"] for one in _asked("policy.list").get("ops", ()))
    elif metavar == "KEY":
        yield from (".".join(one.name) for one in _settings(environ))
    elif path == ["config", "set"] and given:
        yield from _values_of(given[0])


def _plugins(environ: Mapping[str, str]) -> Iterator[str]:
    document, _ = _document(environ)
    yield from (one["id"] for one in document.get("plugin", ()) if isinstance(one, dict) and "id" in one)


def _document(environ: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    import tomllib  # noqa: PLC0415 - only where it is needed

    from utter_runner.config import default_config_path  # noqa: PLC0415 - see above

    try:
        text = default_config_path(environ).read_text("utf-8-sig")
        return tomllib.loads(text), text
    except (OSError, ValueError):
        return {}, ""


def _settings(environ: Mapping[str, str]) -> list[Any]:
    from utter_runner.config.effective import effective  # noqa: PLC0415 - only where it is needed

    document, text = _document(environ)
    return effective(document, text, lambda _table: {}).settings


def _values_of(key: str) -> Iterator[str]:
    """The values that a key of the configuration can have, as far as they can be listed."""
    from msgspec import inspect  # noqa: PLC0415 - only where it is needed

    from utter_runner.config.effective import kind_of, parse_name  # noqa: PLC0415 - see above

    if key in {"audio.device", "audio.output_device"}:
        side = "inputs" if key == "audio.device" else "outputs"
        yield from (one["name"] for one in _asked("audio.devices").get(side, ()))
        return
    kind: Any = kind_of(parse_name(key))
    kinds = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    for one in kinds:
        if isinstance(one, inspect.BoolType):
            yield from ("true", "false")
        elif isinstance(one, inspect.LiteralType):
            yield from map(str, one.values)


def _asked(method: str) -> dict[str, Any]:
    """What the runner answers; nothing if it does not, or not at once."""
    from utter_runner.cli.connection import Target  # noqa: PLC0415 - only where it is needed

    with Target(os.environ.get("UTTER_SOCKET"), os.environ.get("UTTER_TOKEN_FILE")).connect() as client:
        return dict(client.call(method, {}, _ASK_SECONDS))
