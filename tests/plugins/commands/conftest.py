"""A router as the plugin builds it: the shipped sentences, a few applications and phrases of the test's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from utter_plugins.commands.teaching import Settings, Teacher

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from utter_plugins.commands.router import Router

FIREFOX = """[Desktop Entry]
Type=Application
Name=Firefox
Name[de]=Feuerfuchs
GenericName=Web Browser
Keywords=Internet;WWW;
Exec=firefox %u
"""
WRITER = """[Desktop Entry]
Type=Application
Name=LibreOffice Writer
GenericName=Word Processor
Exec=libreoffice --writer
"""
HIDDEN = """[Desktop Entry]
Type=Application
Name=Secret Helper
NoDisplay=true
Exec=true
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """An environment whose data folders hold three applications, one of them hidden."""
    applications = tmp_path / "data/applications"
    applications.mkdir(parents=True)
    for app, text in (("org.mozilla.firefox", FIREFOX), ("writer", WRITER), ("helper", HIDDEN)):
        (applications / f"{app}.desktop").write_text(text)
    return {
        "HOME": str(tmp_path),
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "XDG_DATA_DIRS": str(tmp_path / "none"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }


@pytest.fixture
def teach(env: dict[str, str]) -> Callable[..., Router]:
    """Build a router that also knows some sentences, each with the step `test {said: sentence}`."""

    def build(*sentences: str, **settings: Any) -> Router:
        phrases = [{"say": say, "op": "test", "args": {"said": say}} for say in sentences]
        taught = Teacher(Settings(phrase=[*phrases, *settings.pop("phrase", [])], **settings), env).teach()
        assert taught.problems == ()
        return taught.router

    return build
