"""What is said of settings that do not fit, and at which file and line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from utter_protocol.packages import MANIFEST_NAME, bundled_directory
from utter_protocol.settings import check_manifest
from utter_runner.config import load_config
from utter_runner.main import plugin_specs

if TYPE_CHECKING:
    from pathlib import Path

MANIFEST = """\
name = "timer"
version = "1.2.0"
kind = "action"
protocol = "1.0"
abi = 1
runtime = "subprocess"
transport = "stdio"
entrypoint = ["timer"]

[settings]
rate = 90
voice = { name = "a" }

[config_schema]
type = "object"
additionalProperties = false
required = ["token"]

[config_schema.properties]
token = { type = "string" }
rate = { type = "integer", minimum = 80 }
voice = { type = "object", properties.name = { type = "string" }, required = ["name"] }
"""


class Home:
    """A package `timer` and a configuration that names it."""

    def __init__(self, directory: Path) -> None:
        self.manifest = directory / "timer" / MANIFEST_NAME
        self.manifest.parent.mkdir()
        self.manifest.write_text(MANIFEST)
        self.config = directory / "runner.toml"
        self._directory = directory

    def problems(self, settings: str, *, thorough: bool = False) -> tuple[list[str], list[str]]:
        """Which plugins are run, and what is said."""
        text = f'[runner]\nplugin_dirs = ["{self._directory}"]\n[[plugin]]\nid = "desktop"\n'
        self.config.write_text(f'{text}[[plugin]]\nid = "timer"\n{settings}')
        specs, problems = plugin_specs(load_config(self.config), {}, thorough=thorough)
        return [spec.id for spec in specs], problems


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_what_fits_is_run(home: Home) -> None:
    assert home.problems('[plugin.settings]\ntoken = "x"\nrate = 80\n') == (["desktop", "timer"], [])


def test_what_does_not_is_named_with_its_line(home: Home) -> None:
    settings = '[plugin.settings]\n# A comment.\nrate = 7\ntoken = "x"\n\n[plugin.settings.voice]\nname = 3\n'
    assert home.problems(settings) == (
        ["desktop"],
        [
            f"Plugin timer: {home.config}:9: The setting rate: the value is less than the minimum of 80.",
            f'Plugin timer: {home.config}:13: The setting voice.name: the value is not of type "string".',
        ],
    )


def test_what_is_missing_is_missing_in_the_configuration(home: Home) -> None:
    message = "The setting token is missing."
    assert home.problems("") == (["desktop"], [f"Plugin timer: {home.config}:5: {message}"])
    assert home.problems("[plugin.settings]\nrate = 80\n")[1] == [f"Plugin timer: {home.config}:7: {message}"]


def test_a_default_that_does_not_fit_is_the_manifests(home: Home) -> None:
    home.manifest.write_text(MANIFEST.replace("rate = 90", "rate = 9"))
    assert home.problems('[plugin.settings]\ntoken = "x"\n')[1] == [
        f"Plugin timer: {home.manifest}:11: The setting rate: the value is less than the minimum of 80."
    ]
    # Unless the user has another.
    assert home.problems('[plugin.settings]\ntoken = "x"\nrate = 80\n')[1] == []


def test_a_schema_that_is_none_is_the_manifests(home: Home) -> None:
    home.manifest.write_text(MANIFEST.replace('token = { type = "string" }', 'token = { type = "text" }'))
    running, (problem,) = home.problems('[plugin.settings]\ntoken = "x"\n')
    assert running == ["desktop"]
    assert problem.startswith(f"Plugin timer: {home.manifest}:20: config_schema is not a valid JSON Schema at ")


def test_a_schema_that_nobody_can_break_is_looked_at_when_asked(home: Home) -> None:
    head, _, _ = MANIFEST.partition("[settings]")
    home.manifest.write_text(f'{head}[config_schema.properties]\nrate = {{ type = "number of beats" }}\n')
    assert home.problems("") == (["desktop", "timer"], [])
    running, (problem,) = home.problems("", thorough=True)
    assert running == ["desktop"]
    assert problem.startswith(f"Plugin timer: {home.manifest}:11: config_schema is not a valid JSON Schema")


def test_a_configuration_that_changed_meanwhile_is_named_without_a_line(home: Home) -> None:
    home.problems("")
    config = load_config(home.config)
    home.config.write_text("[[[")
    (problem,) = plugin_specs(config, {})[1]
    assert problem == f"Plugin timer: {home.config}: The setting token is missing."


def test_those_that_are_switched_off_are_left_alone(home: Home) -> None:
    assert home.problems("enabled = false\n") == (["desktop"], [])


def test_every_shipped_plugin_has_a_schema_in_order() -> None:
    directory = bundled_directory()
    assert directory is not None
    manifests = sorted(directory.glob(f"*/{MANIFEST_NAME}"))
    assert len(manifests) > 3
    for path in manifests:
        assert check_manifest(path).config_schema.get("additionalProperties") is False, path
