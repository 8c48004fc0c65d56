"""Whether a plugin's settings are what its manifest wants, and where the wrong ones were written.

Rules here: a finding names the plugin, the key, and the file and line that has to change; values are never shown. The
library behind it takes long to import, so it is not for plugins about which there is nothing to check.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from utter_protocol.json_schema import SchemaError
from utter_protocol.settings import need_checking, schema_error, wrong_settings
from utter_protocol.toml_lines import line_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from utter_protocol.toml_lines import Key
    from utter_runner.supervision.spec import PluginSpec, SettingsSchema


def settings_problems(spec: PluginSpec, place: Callable[[Key], str], *, thorough: bool = False) -> list[str]:
    """Return a sentence for everything that is wrong with the settings of a plugin.

    Args:
        spec: the plugin.
        place: the `FILE:LINE` of a key of the plugin's table in the configuration.
        thorough: look at the schema even if there are no settings and none are needed.
    """
    wanted = spec.settings_schema
    if wanted is None or not (thorough or need_checking(wanted.schema, spec.settings)):
        return []
    try:
        found = wrong_settings(wanted.schema, spec.settings)
    except SchemaError as error:
        return [f"Plugin {spec.id}: {schema_error(Path(wanted.manifest), error)}"]
    return [f"Plugin {spec.id}: {_place(one.key, spec, wanted, place)}: {one.message}" for one in found]


def _place(key: Key, spec: PluginSpec, wanted: SettingsSchema, place: Callable[[Key], str]) -> str:
    mine = not key or key[0] in wanted.configured or key[0] not in spec.settings
    if mine:
        return place(("settings", *key))
    try:
        text = Path(wanted.manifest).read_text()
    except (OSError, UnicodeDecodeError):
        return wanted.manifest
    return f"{wanted.manifest}:{line_of(text, ('settings', *key))}"
