from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from utter_plugins.commands.phrases import PhraseError, fill, read_file, read_table
from utter_plugins.commands.router import Router
from utter_plugins.commands.teaching import Settings, Teacher

if TYPE_CHECKING:
    from pathlib import Path

GOOD = """
[[phrase]]
say = "one"
op = "a"
"""


@pytest.mark.parametrize(
    ("text", "where", "why"),
    [
        ("[[phrase]\n", "phrases.toml", "line 1"),
        (GOOD + '\n[[phrase]]\nsay = "two"\n', "line 7", "either op (with args) or steps"),
        (GOOD + '\n[[phrase]]\nsay = "two"\nopp = "x"\n', "line 7 (phrase 'two')", "opp"),
        (GOOD + '\n[[phrase]]\nsay = 5\nop = "x"\n', "line 6", "field say"),
        (GOOD + '\n[[phrase]]\nsay = []\nop = "x"\n', "line 6", "at least one sentence"),
        ('[[phrase]]\nsay = ["a", " "]\nop = "x"\n', "line 1", "no empty one"),
        ('[[phrase]]\nsay = "go"\nop = "x"\nargs = { a = "{where}" }\n', "line 2 (phrase 'go')", "{where}"),
        ('[[phrase]]\nsay = "go {text}"\nop = "x"\nargs = { a = "{text|html}" }\n', "line 2", "{text|html}"),
        ('[[phrase]]\nsay = "go"\nsteps = [{ op = " " }]\n', "line 2", "needs an op"),
        ('[[phrase]]\nsay = "go"\nsteps = [{ op = "x" }]\nconfirm = true\n', "line 2", "into each of the steps"),
        ('[[site]]\nname = "x"\nurl = ""\n', "line 1", "a name and a url"),
        ("[lists]\nn = { from = 5, to = 1 }\n", "list n", "from <= to"),
        ("[lists]\nn = []\n", "list n", "at least one value"),
        ("[colours]\n", "phrases.toml", "colours"),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path: Path, text: str, where: str, why: str) -> None:
    path = tmp_path / "phrases.toml"
    path.write_text(text)
    with pytest.raises(PhraseError) as caught:
        read_file(path)
    assert str(path) in str(caught.value)
    assert where in str(caught.value)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("say", "why"),
    [("turn (on|off the light", "brackets"), ("go to {nowhere}", "no list 'nowhere'"), ("<go> there", "<rules>")],
)
def test_a_wrong_template_is_named_with_its_place(tmp_path: Path, say: str, why: str) -> None:
    path = tmp_path / "phrases.toml"
    path.write_text(f'{GOOD}\n[[phrase]]\nsay = "{say}"\nop = "x"\n')
    language = read_file(path)
    with pytest.raises(PhraseError) as caught:
        Router(language.phrases, {})
    assert f"{path}, line 7" in str(caught.value)
    assert say in str(caught.value)
    assert why in str(caught.value)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(PhraseError, match=r"nothing\.toml cannot be read: No such file"):
        read_file(tmp_path / "nothing.toml")
    (tmp_path / "latin.toml").write_bytes(b"# \xff\n")
    with pytest.raises(PhraseError, match=r"latin\.toml is not UTF-8"):
        read_file(tmp_path / "latin.toml")


def test_inline_mistakes_name_the_settings() -> None:
    with pytest.raises(PhraseError, match="the settings, phrase 2"):
        read_table({"phrase": [{"say": "a", "op": "x"}, {"say": "b"}]}, "the settings")


def test_values_keep_their_type_and_what_was_not_said_is_left_out() -> None:
    assert fill({"a": "{n}", "b": "x{n}y", "c": ["{n}", 1], "d": "{gone}", "e": "x{gone}"}, {"n": 5}) == {
        "a": 5,
        "b": "x5y",
        "c": [5, 1],
        "e": "x",
    }


def test_a_broken_file_keeps_its_last_good_content(env: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[[phrase]]\nsay = "good night"\nop = "x"\n')
    other = tmp_path / "other.toml"
    other.write_text('[[phrase]]\nsay = "good morning"\nop = "y"\n')
    teacher = Teacher(Settings(phrases=[str(path), str(other)]), env)
    assert teacher.teach().problems == ()
    path.write_text("[[phrase]\n")
    taught = teacher.teach()
    assert len(taught.problems) == 1
    assert "last good content" in taught.problems[0]
    assert [step.op for step in taught.router.plan("good night").steps] == ["x"]
    assert [step.op for step in taught.router.plan("good morning").steps] == ["y"]


def test_a_file_with_a_wrong_template_harms_no_other(env: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[[phrase]]\nsay = "good (night"\nop = "x"\n')
    taught = Teacher(Settings(phrases=str(path), phrase=[{"say": "hello there", "op": "z"}]), env).teach()
    assert len(taught.problems) == 1
    assert f"{path}, line 2" in taught.problems[0]
    assert [step.op for step in taught.router.plan("hello there").steps] == ["z"]
    assert taught.router.plan("open youtube").steps


def test_the_default_file_may_be_missing(env: dict[str, str], tmp_path: Path) -> None:
    teacher = Teacher(Settings(), env)
    assert teacher.files == [tmp_path / "config/utter/phrases.toml"]
    assert teacher.teach().problems == ()
    missing = Teacher(Settings(phrases="~/gone.toml"), env).teach()
    assert "gone.toml cannot be read" in missing.problems[0]


def test_sites_can_be_added_and_changed(env: dict[str, str]) -> None:
    sites = [{"name": "My Wiki", "url": "https://wiki.example/"}, {"name": "YouTube", "url": "https://tube.example/"}]
    taught = Teacher(Settings(site=sites), env).teach()
    assert taught.router.plan("open my wiki").steps[0].args == {"url": "https://wiki.example/"}
    assert taught.router.plan("open youtube").steps[0].args == {"url": "https://tube.example/"}
    candidates = {candidate.id: candidate.value for candidate in taught.candidates}
    assert candidates["site:my wiki"] == "https://wiki.example/"
    assert candidates["site:youtube"] == "https://tube.example/"
    assert candidates["app:org.mozilla.firefox"] == "org.mozilla.firefox"
    assert "app:helper" not in candidates
