from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from utter_plugins.commands.applications import Application, installed, spoken_names

if TYPE_CHECKING:
    from pathlib import Path


def entry(folder: Path, app: str, **keys: str) -> None:
    path = folder / "applications" / f"{app}.desktop"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(f"{key}={value}\n" for key, value in {"Type": "Application", "Name": app, **keys}.items())
    path.write_text(f"# a comment\n[Desktop Entry]\n{lines}[Desktop Action new]\nName=New Window\n")


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path, dict[str, str]]:
    own, system = tmp_path / "own", tmp_path / "system"
    return own, system, {"XDG_DATA_HOME": str(own), "XDG_DATA_DIRS": str(system), "HOME": str(tmp_path)}


def test_what_a_menu_would_show(folders: tuple[Path, Path, dict[str, str]]) -> None:
    own, system, env = folders
    entry(system, "plain", GenericName="Editor", Keywords="Text;Write;")
    entry(system, "changed", Name="Old")
    entry(own, "changed", Name="New")
    entry(system, "removed")
    entry(own, "removed", Hidden="true")
    entry(system, "helper", NoDisplay="true")
    entry(system, "link", Type="Link")
    entry(system, "gone", TryExec="/nonexistent/program")
    entry(system, "kde/tool", Name="Tool")
    entry(system, "gnome-only", OnlyShowIn="GNOME;")
    entry(system, "not-niri", NotShowIn="niri;")
    (system / "applications/binary.desktop").write_bytes(b"[Desktop Entry]\nName=\xff\xfe\n")
    (system / "applications/empty.desktop").write_text("")
    (system / "applications/readme.txt").write_text("[Desktop Entry]\nType=Application\nName=No\n")
    (system / "applications/dangling.desktop").symlink_to("nowhere")
    found = installed({**env, "XDG_CURRENT_DESKTOP": "niri"})
    assert [(item.app, item.names) for item in found] == [
        ("changed", ("New",)),
        ("kde-tool", ("Tool",)),
        ("plain", ("plain",)),
    ]
    assert found[-1].kinds == ("Editor", "Text", "Write")


def test_names_come_in_the_users_language_too(folders: tuple[Path, Path, dict[str, str]]) -> None:
    own, _, env = folders
    entry(own, "files", Name="Files", **{"Name[de]": "Dateien", "GenericName[de_AT]": "Dateiverwaltung"})
    assert installed({**env, "LANG": "de_AT.UTF-8"})[0] == Application(
        "files", ("Dateien", "Files"), ("Dateiverwaltung",)
    )
    assert installed(env)[0].names == ("Files",)


def test_spoken_names() -> None:
    names, loose = spoken_names(
        [
            Application("org.gimp.GIMP", ("GNU Image Manipulation Program",), ("Image Editor",)),
            Application("org.kde.krita", ("Krita",), ("Image Editor", "Painting")),
            Application("writer", ("LibreOffice Writer",)),
            Application("other", ("LIBREOFFICE WRITER", "Painting")),
        ]
    )
    assert names["LibreOffice Writer"] == "writer"
    assert names["Libre Office Writer"] == "writer"
    assert "LIBREOFFICE WRITER" not in names
    # A kind that several have names none of them; a name goes before a kind.
    assert loose["GIMP"] == "org.gimp.GIMP"
    assert "Image Editor" not in loose
    assert "Painting" not in loose
