from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utter_plugins.desktop.execline import ExecError, FieldValues, expand_exec, split_exec


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("firefox", ["firefox"]),
        ("  a \t b\n", ["a", "b"]),
        ('"/opt/My App/run" --x', ["/opt/My App/run", "--x"]),
        (r'sh "a \"b\" \$c \`d\` \\e"', ["sh", 'a "b" $c `d` \\e']),
        (r'"a \n b"', [r"a \n b"]),
        ('""', [""]),
        ('env WINEPREFIX="/a b" wine C:\\\\x.exe', ["env", "WINEPREFIX=/a b", "wine", "C:\\x.exe"]),
        ("sh -c 'a \"b\" $c'", ["sh", "-c", 'a "b" $c']),
        ("", []),
    ],
)
def test_split(value: str, expected: list[str]) -> None:
    assert split_exec(value) == expected


@pytest.mark.parametrize(
    ("value", "complaint"),
    [('a "b', 'a " is not closed'), ("a 'b", "a ' is not closed"), ("a\\", "it ends in a lone backslash")],
)
def test_split_refuses(value: str, complaint: str) -> None:
    with pytest.raises(ExecError, match=complaint):
        split_exec(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("app %f", ["app"]),
        ("app %F %u %U --new %d %D %n %N %v %m", ["app", "--new"]),
        ("app --url=%u", ["app", "--url="]),
        ("app --title %c", ["app", "--title", "My; App $(x)"]),
        ("app %i", ["app", "--icon", "icon name"]),
        ("app %k", ["app", "/share/app.desktop"]),
        ("app 100%% %%f", ["app", "100%", "%f"]),
        ('app "%c"', ["app", "My; App $(x)"]),
    ],
)
def test_expand(value: str, expected: list[str]) -> None:
    fields = FieldValues(name="My; App $(x)", location="/share/app.desktop", icon="icon name")
    assert expand_exec(value, fields) == expected


def test_icon_code_without_icon_leaves_nothing() -> None:
    assert expand_exec("app %i", FieldValues()) == ["app"]


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("app %z", "%z is no field code"),
        ("app 100%", "% is no field code"),
        ("", "names no program"),
        ("%U", "names no program"),
        ('"" x', "names no program"),
    ],
)
def test_expand_refuses(value: str, complaint: str) -> None:
    with pytest.raises(ExecError, match=complaint):
        expand_exec(value, FieldValues())


def _quote(argument: str) -> str:
    for char in '\\"`$':
        argument = argument.replace(char, "\\" + char)
    return f'"{argument}"'


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))))
def test_what_is_quoted_by_the_specification_comes_back_whole(arguments: list[str]) -> None:
    assert split_exec(" ".join(map(_quote, arguments))) == arguments


@given(st.text())
def test_any_text_either_splits_or_is_refused(value: str) -> None:
    try:
        argv = expand_exec(value, FieldValues(name="n"))
    except ExecError:
        return
    assert argv[0]
