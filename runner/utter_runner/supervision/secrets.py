"""The secrets of one plugin: which of its settings and variables they are, and putting them where they belong.

Rules here: only what the user's configuration says is taken for a reference, never what a manifest says, or a plugin
could have files read that it may not read itself. A finding names the key and the place, never a secret.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from utter_protocol.settings import secret_settings
from utter_protocol.toml_lines import shown_key
from utter_runner.config.secret import SecretError, is_reference

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_protocol.toml_lines import Key
    from utter_runner.supervision.spec import PluginSpec


def with_secrets(
    spec: PluginSpec, find: Callable[[str], str], place: Callable[[Key], str]
) -> tuple[PluginSpec, list[str]]:
    """Return a plugin with its secrets in place, and a sentence for everything that could not be found.

    Args:
        spec: the plugin, with references in `secret_env` and in settings that its schema marks `writeOnly`.
        find: returns the secret of a reference; raises SecretError.
        place: the `FILE:LINE` of a key of the plugin's table in the configuration.
    """
    secrets: dict[str, None] = {}
    problems: list[str] = []

    def found(reference: str, key: Key) -> str:
        try:
            secret = find(reference)
        except SecretError as error:
            problems.append(f"Plugin {spec.id}: {place(key)}: {shown_key(key)}: {error}")
            return ""
        secrets[secret] = None
        return secret

    env = {name: found(reference, ("secret_env", name)) for name, reference in spec.secret_env.items()}
    settings: dict[str, Any] = spec.settings
    wanted = spec.settings_schema
    if wanted is not None:
        for key in secret_settings(wanted.schema, spec.settings):
            value = _at(settings, key)
            if key[0] in wanted.configured and is_reference(value):
                settings = _replaced(settings, key, found(value, ("settings", *key)))
            else:
                secrets[value] = None
    if not (env or secrets):
        return spec, problems
    return (
        msgspec.structs.replace(
            spec, env={**spec.env, **env}, secret_env={}, settings=settings, secrets=tuple(secrets)
        ),
        problems,
    )


def _at(settings: Any, key: Key) -> Any:
    for part in key:
        settings = settings[part]
    return settings


def _replaced(settings: Any, key: Key, secret: str) -> Any:
    """A copy of settings with a secret at a place."""
    if not key:
        return secret
    copied = settings.copy()
    copied[key[0]] = _replaced(settings[key[0]], key[1:], secret)
    return copied
