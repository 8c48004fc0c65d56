"""The record of what is installed: it comes back as it was written, and what is wrong with it is told with its line."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from utter_protocol.drift import Announced, Tool
from utter_runner.operate import lockfile
from utter_runner.operate.errors import OperateError
from utter_runner.operate.lockfile import Entry

ENTRY = Entry(
    version="1.0.0",
    protocol="1.0",
    abi=1,
    digest="sha256:" + "0" * 64,
    permissions=["network"],
    source="/home/ada/lamp",
    signed_by="RW",
)
text = st.text(st.characters(codec="utf-8"))
digests = st.sampled_from([ENTRY.digest, "sha256:" + "1" * 64])
tools = st.builds(
    Tool,
    side_effect=st.sampled_from(["none", "local", "external", "destructive"]),
    needs_confirm=st.booleans(),
    digest=digests,
)
said = st.builds(
    Announced,
    version=text,
    protocol=text,
    abi=st.integers(0, 2**40),
    permissions=st.lists(text),
    tools=st.dictionaries(text, tools, max_size=3),
)
entries = st.builds(
    Entry,
    version=text,
    protocol=text,
    abi=st.integers(0, 2**40),
    digest=digests,
    permissions=st.lists(text),
    source=text,
    signed_by=text,
    code=digests | st.just(""),
    process=said | st.none(),
)


@settings(deadline=None)
@given(st.dictionaries(st.from_regex(r"\A[a-z0-9][a-z0-9._-]{1,63}\Z"), entries, max_size=4))
def test_what_is_written_is_read(known: dict[str, Entry]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "install.lock")
        lockfile.write(path, known)
        assert lockfile.read(path) == known
        assert [one.name for one in Path(directory).iterdir()] == ["install.lock"]
        assert path.stat().st_mode & 0o777 == 0o600


def test_none_is_an_empty_one(tmp_path: Path) -> None:
    assert lockfile.read(tmp_path / "install.lock") == {}


def test_a_file_of_the_first_version_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "install.lock"
    lamp = GOOD.replace("permissions = []", 'permissions = ["network"]').replace("/x", "/home/ada/lamp")
    path.write_text(f'{HEAD}{lamp}signed_by = "RW"\n\n[plugins.other]\n{GOOD}')
    first = lockfile.read(path)
    assert first == {
        "lamp": ENTRY,
        "other": msgspec.structs.replace(ENTRY, permissions=[], source="/x", signed_by=""),
    }
    lockfile.write(path, first)
    assert "version = 2\n" in path.read_text()
    assert lockfile.read(path) == first


def test_one_that_could_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "install.lock"
    lockfile.write(path, {"lamp": ENTRY})
    huge = msgspec.structs.replace(ENTRY, version="1" * lockfile.MAX_BYTES)
    with pytest.raises(OperateError, match="would be longer than 4194304 bytes"):
        lockfile.write(path, {"lamp": huge})
    assert lockfile.read(path) == {"lamp": ENTRY}


HEAD = "version = 1\n[plugins.lamp]\n"
GOOD = (
    'version = "1.0.0"\nprotocol = "1.0"\nabi = 1\ndigest = "sha256:'
    + "0" * 64
    + '"\npermissions = []\nsource = "/x"\n'
)
PROCESS = "[plugins.lamp.process]\nversion = ''\nprotocol = ''\nabi = 1\npermissions = []\n"
WRONG = {
    "no TOML": (b"version = 1\n[plugins\n", 2, "Expected"),
    "cut off": (b'version = 1\n[plugins.lamp]\nversion = "1', 3, "Unterminated string"),
    "no UTF-8": (b"version = 1\n# \xff\n", 2, "not UTF-8"),
    "newer": (b"# A comment\nversion = 3\n", 2, "version must be 1 or 2"),
    "without a version": (b"[plugins]\n", 1, "version must be 1"),
    "another table": (b"version = 1\n\n[others]\n", 3, "no key others"),
    "no tables": (b"version = 1\nplugins = 3\n", 2, "plugins must be tables"),
    "a digest": ((HEAD + GOOD.replace("sha256", "md5")).encode(), 6, "plugins.lamp.digest: Expected"),
    "an abi": ((HEAD + GOOD.replace("abi = 1", 'abi = "1"')).encode(), 5, "plugins.lamp.abi: Expected `int`"),
    "a permission": ((HEAD + GOOD.replace("[]", "[3]")).encode(), 7, "plugins.lamp.permissions: Expected `str`"),
    "missing": ((HEAD + GOOD.replace("abi = 1\n", "")).encode(), 2, "missing required field `abi`"),
    "a process": (
        (HEAD + GOOD + "[plugins.lamp.process]\nversion = 3\n").encode(),
        10,
        "plugins.lamp.process.version: Expected `str`",
    ),
    "a tool": (
        (HEAD + GOOD + PROCESS + "[plugins.lamp.process.tools.on]\nside_effect = 'all'\n").encode(),
        14,
        "plugins.lamp.process.tools",
    ),
    "a version that is no number": (b"version = true\n", 1, "version must be 1 or 2"),
    "unknown": ((HEAD + GOOD + "more = 1\n").encode(), 2, "unknown field `more`"),
    "too deep": (b"version = 1\nx = " + b"[" * 5000 + b"]" * 5000, 1, "nested too deeply"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_wrong_is_told_with_its_line_and_nothing_is_lost(tmp_path: Path, kind: str) -> None:
    data, line, why = WRONG[kind]
    path = tmp_path / "install.lock"
    path.write_bytes(data)
    with pytest.raises(OperateError) as error:
        lockfile.read(path)
    assert str(error.value).startswith(f"{path}:{line}: The record of plugins cannot be used: ")
    assert why in str(error.value)
    assert path.read_bytes() == data


def test_one_that_cannot_be_read_is_no_empty_one(tmp_path: Path) -> None:
    (tmp_path / "install.lock").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "endless").symlink_to("/dev/zero")
    for name in ("install.lock", "pipe", "endless"):
        with pytest.raises(OperateError, match=f"{name}:1: The record of plugins cannot be read: it is no file"):
            lockfile.read(tmp_path / name)
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OperateError, match=r"loop:1: .* cannot be read: Too many levels"):
        lockfile.read(tmp_path / "loop")
    (tmp_path / "huge").write_bytes(b"#" * (lockfile.MAX_BYTES + 1))
    with pytest.raises(OperateError, match="longer than 4194304 bytes"):
        lockfile.read(tmp_path / "huge")


def test_one_that_others_could_have_written_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "install.lock"
    lockfile.write(path, {"lamp": ENTRY})
    path.chmod(0o602)
    with pytest.raises(OperateError, match=r"can be changed by every user: look through it, and run chmod 600 /"):
        lockfile.read(path)
    path.chmod(0o600)
    # A link to one's own file is one's own business.
    (tmp_path / "link").symlink_to(path)
    assert lockfile.read(tmp_path / "link") == {"lamp": ENTRY}
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    if os.getuid():
        with pytest.raises(OperateError, match=f"is owned by user {os.getuid()}"):
            lockfile.read(path)


CLOSED = """\
import os, sys
from pathlib import Path
from utter_runner.operate import lockfile
from utter_runner.operate.errors import OperateError
os.setuid(int(sys.argv[2]))
try:
    lockfile.read(Path(sys.argv[1]))
except OperateError as error:
    print(error)
"""


def test_one_whose_mode_lets_nobody_read_it_is_told() -> None:
    # Root reads everything, so that somebody else has to try, who may not look into the directories of tests.
    user = os.getuid() or 65534
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o711)
        path = Path(directory, "install.lock")
        lockfile.write(path, {"lamp": ENTRY})
        os.chown(path, user, -1)
        path.chmod(0)
        argv = [sys.executable, "-c", CLOSED, str(path), str(user)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"{path}:1: The record of plugins cannot be read: Permission denied.\n"


def test_what_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "install.lock"
    lockfile.write(path, {"lamp": ENTRY})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        lockfile.write(path, {})
    assert lockfile.read(path) == {"lamp": ENTRY}
    assert [one.name for one in tmp_path.iterdir()] == ["install.lock"]


HOLD = """\
import sys
from pathlib import Path
from utter_runner.operate.lockfile import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
    Path(sys.argv[1], "done").touch()
"""


def test_two_at_a_time_wait_for_each_other(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", HOLD, str(tmp_path / "plugins")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == b"held\n"
        # It lets go only after it is done, which it is when its input ends.
        other.stdin.close()
        with lockfile.locked(tmp_path / "plugins"):
            assert (tmp_path / "plugins" / "done").exists()
        assert other.wait(timeout=30) == 0
