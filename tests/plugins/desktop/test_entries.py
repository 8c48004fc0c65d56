from __future__ import annotations

from pathlib import Path

import pytest

from utter_plugins.desktop.entries import (
    MAX_ENTRY_BYTES,
    data_dirs,
    find_entry,
    find_file,
    locale_suffixes,
    parse_group,
    unescape,
)
from utter_plugins.desktop.failure import Failure

Env = dict[str, str]


@pytest.fixture
def env(tmp_path: Path) -> Env:
    programs = tmp_path / "bin"
    programs.mkdir()
    program = programs / "app"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (programs / "not-executable").write_text("")
    return {
        "HOME": str(tmp_path / "home"),
        "XDG_DATA_HOME": str(tmp_path / "home/share"),
        "XDG_DATA_DIRS": f"{tmp_path}/one:{tmp_path}/two",
        "PATH": str(programs),
    }


def install(directory: Path, relative: str, body: str = "Name=App\nExec=app %U\n", kind: str = "Application") -> Path:
    path = directory / "applications" / f"{relative}.desktop"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"# a comment\n\n[Desktop Entry]\nType={kind}\n{body}\n[Desktop Action new]\nExec=wrong\n")
    return path


def test_reads_an_entry(env: Env, tmp_path: Path) -> None:
    path = install(
        tmp_path / "one",
        "org.example.App",
        f"Name=An App\nName[de]=Eine App\nIcon=pic\nExec=app --name %c %i\nTerminal=true\nPath={tmp_path}\nTryExec=app",
    )
    entry = find_entry("org.example.App", env | {"LANG": "de_DE.UTF-8"})
    assert (entry.app, entry.path, entry.name) == ("org.example.App", path, "Eine App")
    assert entry.argv == ["app", "--name", "Eine App", "--icon", "pic"]
    assert (entry.terminal, entry.dbus, entry.cwd) == (True, False, str(tmp_path))


def test_the_users_entry_wins_then_the_first_directory(env: Env, tmp_path: Path) -> None:
    second = install(tmp_path / "two", "a")
    assert find_file("a", env) == second
    first = install(tmp_path / "one", "a")
    assert find_file("a", env) == first
    own = install(tmp_path / "home/share", "a")
    assert find_file("a", env) == own


@pytest.mark.parametrize("relative", ["kde-sub-foo", "kde/sub-foo", "kde-sub/foo", "kde/sub/foo"])
def test_dashes_may_be_subdirectories(env: Env, tmp_path: Path, relative: str) -> None:
    path = install(tmp_path / "one", relative)
    assert find_entry("kde-sub-foo", env).path == path


def test_the_suffix_is_optional(env: Env, tmp_path: Path) -> None:
    install(tmp_path / "one", "a")
    assert find_entry("a.desktop", env).app == "a"


@pytest.mark.parametrize("app", ["a", "x" * 255, "ü" * 255])
def test_what_is_not_there(env: Env, app: str) -> None:
    with pytest.raises(Failure, match=r"^No application \w+ is installed\.$"):
        find_entry(app, env)


def test_a_hidden_entry_hides_those_in_later_directories(env: Env, tmp_path: Path) -> None:
    install(tmp_path / "home/share", "a", "Hidden=true")
    install(tmp_path / "one", "a")
    with pytest.raises(Failure, match=r"^No application a is installed\.$"):
        find_entry("a", env)


@pytest.mark.parametrize("app", ["", "..", "../a", "/etc/passwd", ".hidden", "a\nb", "a\0b", "x" * 256, ".desktop"])
def test_ids_that_are_none(env: Env, app: str) -> None:
    with pytest.raises(Failure, match=r"application's id"):
        find_entry(app, env)


def test_an_id_never_leaves_the_applications_directory(env: Env, tmp_path: Path) -> None:
    install(tmp_path / "one", "x")
    (tmp_path / "one/applications/a").mkdir()
    (tmp_path / "one/outside.desktop").write_text("[Desktop Entry]\nType=Application\nExec=app\n")
    assert find_file("a-..-..-outside", env) is None
    assert find_file("a-.-x", env) is None


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("Name=App\nTryExec=gone\nExec=app", r"^App is not installed: its program gone is missing\.$"),
        ("Name=App\nTryExec=not-executable\nExec=app", r"not-executable is missing"),
        ("Name=App\nExec=gone", r"^App cannot be started: its program gone is missing\.$"),
        ("Name=App\nExec=/nowhere/gone", r"/nowhere/gone is missing"),
        ("Name=App", r"a\.desktop is wrong: it names no program"),
        ("Name=App\nExec=app %q", r"a\.desktop is wrong: %q is no field code"),
        ("Name=App\nExec=app\nPath=/nowhere/x", r"its folder /nowhere/x does not exist"),
    ],
)
def test_entries_that_cannot_be_launched(env: Env, tmp_path: Path, body: str, complaint: str) -> None:
    install(tmp_path / "one", "a", body)
    with pytest.raises(Failure, match=complaint):
        find_entry("a", env)


def test_links_and_directories_are_no_applications(env: Env, tmp_path: Path) -> None:
    install(tmp_path / "one", "a", kind="Link")
    with pytest.raises(Failure, match=r"its Type is Link"):
        find_entry("a", env)


def test_files_that_are_no_entries(env: Env, tmp_path: Path) -> None:
    path = install(tmp_path / "one", "a")
    path.write_text("Exec=app\n")
    with pytest.raises(Failure, match=r"its Type is missing"):
        find_entry("a", env)
    path.write_bytes(b"[Desktop Entry]\nName=\xff\n")
    with pytest.raises(Failure, match=r"a\.desktop cannot be read"):
        find_entry("a", env)
    path.write_bytes(b"[Desktop Entry]\nType=Application\nExec=app \0\n")
    with pytest.raises(Failure, match=r"it is no text"):
        find_entry("a", env)
    path.write_bytes(b"#" * (MAX_ENTRY_BYTES + 1))
    with pytest.raises(Failure, match=r"more than 1048576 bytes"):
        find_entry("a", env)


def test_a_bus_activated_entry_needs_no_program(env: Env, tmp_path: Path) -> None:
    install(tmp_path / "one", "org.example.A", "Name=A\nDBusActivatable=true")
    install(tmp_path / "one", "org.example.B", "Name=B\nDBusActivatable=true\nExec=gone")
    assert find_entry("org.example.A", env).argv == []
    assert find_entry("org.example.B", env).argv == ["gone"]


def test_defaults_of_the_base_directories() -> None:
    assert data_dirs({"HOME": "/home/u"}) == [
        Path("/home/u/.local/share"),
        Path("/usr/local/share"),
        Path("/usr/share"),
    ]
    assert data_dirs({"HOME": "/h", "XDG_DATA_HOME": "relative", "XDG_DATA_DIRS": "/a:b::/c"}) == [
        Path("/h/.local/share"),
        Path("/a"),
        Path("/c"),
    ]


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"LANG": "de_AT.UTF-8@euro"}, ["[de_AT@euro]", "[de_AT]", "[de@euro]", "[de]", ""]),
        ({"LANG": "de", "LC_MESSAGES": "fr_FR"}, ["[fr_FR]", "[fr]", ""]),
        ({"LANG": "de", "LC_ALL": "C.UTF-8"}, [""]),
        ({}, [""]),
    ],
)
def test_locale(env: Env, expected: list[str]) -> None:
    assert locale_suffixes(env) == expected


def test_string_escapes_are_undone_once() -> None:
    assert unescape(r"a\sb\n\t\r\\s\q\\") == "a b\n\t\r\\s\\q\\"


def test_only_the_main_group_counts() -> None:
    assert parse_group("a=0\n[Desktop Entry]\r\n a = b=c \n#x=y\nbroken\n[Other]\na=1\n") == {"a": "b=c"}
