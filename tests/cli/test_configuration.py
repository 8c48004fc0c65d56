"""utter config."""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
import sys
import tomllib
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from utter_runner.cli import main
from utter_runner.config import load_config
from utter_runner.operate import configuring, first_config
from utter_runner.operate.errors import OperateError

if TYPE_CHECKING:
    from support.fake_runner import FakeRunner

EXAMPLE = Path(__file__).parents[2] / "config.example.toml"
CONFIG = """\
# mine
[voice]
silence_ms = 900  # shorter
[[plugin]]
id = "espeak"
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, directory in (("HOME", "home"), ("XDG_CONFIG_HOME", "config"), ("XDG_DATA_HOME", "data")):
        monkeypatch.setenv(name, str(tmp_path / directory))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    path = tmp_path / "config" / "utter" / "runner.toml"
    path.parent.mkdir(parents=True)
    path.write_text(CONFIG)
    path.chmod(0o640)
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["config", *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_path(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "path") == (0, f"{config}\n", "")
    assert json.loads(run(capsys, "path", "--json")[1]) == {"path": str(config), "exists": True}
    assert run(capsys, "path", "--config", "/nowhere") == (1, "/nowhere\n", "")


class TestInit:
    def test_it_is_the_example_for_this_user_alone(self, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
        new = config.parent / "sub" / "new.toml"
        code, out, err = run(capsys, "init", "--config", str(new))
        assert (code, err) == (0, "")
        assert f"Wrote {new}\n" in out
        assert "plugin.whisper.enabled = " in out
        assert stat.S_IMODE(new.stat().st_mode) == 0o600
        assert stat.S_IMODE(new.parent.stat().st_mode) == 0o700
        assert [one.name for one in new.parent.iterdir()] == ["new.toml"]
        assert load_config(new).voice == load_config(EXAMPLE).voice

    def test_nothing_is_written_over(self, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
        link = config.with_name("link.toml")
        link.symlink_to("nothing")
        for path in (config, link):
            code, out, err = run(capsys, "init", "--config", str(path))
            assert (code, out) == (2, "")
            assert "is there already, and is not written over" in err
        assert config.read_text() == CONFIG
        assert not link.exists()

    def test_what_is_not_installed_is_switched_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(first_config, "_installed", lambda name: name not in {"faster-whisper", "sounddevice"})
        monkeypatch.setattr(first_config.shutil, "which", lambda name: name != "espeak-ng")
        text, choices = first_config.first_config()
        plugins = {one["id"]: one.get("enabled", True) for one in tomllib.loads(text)["plugin"]}
        assert plugins == {"commands": True, "whisper": False, "desktop": True, "espeak": False}
        chosen = {one.key: (one.value, one.why) for one in choices}
        assert chosen["plugin.whisper.enabled"] == (False, "pip install 'utter-runner[whisper]'")
        assert chosen["plugin.espeak.enabled"] == (False, "install the program espeak-ng")
        assert chosen["audio.source"][0] == "pw-record"
        assert "utter-runner[audio]" in chosen["audio.source"][1]
        assert tomllib.loads(text)["audio"]["source"] == "pw-record"

    def test_without_anything_to_record_with_there_is_no_source(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(first_config, "_installed", lambda _name: False)
        monkeypatch.setattr(first_config.shutil, "which", lambda _name: None)
        assert tomllib.loads(first_config.first_config()[0])["audio"]["source"] == "none"

    def test_the_package_holds_the_example(self) -> None:
        assert first_config.example() == EXAMPLE.read_text()
        assert resources.files("utter_runner.config").joinpath(first_config.EXAMPLE).is_file()


class TestCheck:
    def test_it_says_what_the_runner_says(self, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for text, wanted in ((CONFIG, 0), ('[hotkeys]\ntoggle = "NOKEY"\n', 1), ("[voice]\nsilence_ms = 5\n", 2)):
            config.write_text(text)
            command = [sys.executable, "-P", "-m", "utter_runner", "--check"]
            asked = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
            assert run(capsys, "check") == (asked.returncode, asked.stdout, asked.stderr)
            assert asked.returncode == wanted
            code, out, _ = run(capsys, "check", str(config), "--json")
            assert code == wanted
            assert json.loads(out) == {"path": str(config), "ok": not wanted, "problems": asked.stderr.splitlines()}

    @pytest.mark.usefixtures("config")
    def test_a_file_in_the_directory_is_not_run(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "utter_runner.py").write_text("raise SystemExit(99)\n")
        monkeypatch.chdir(tmp_path)
        assert run(capsys, "check")[0] == 0


class TestShow:
    def test_every_key(self, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
        code, out, err = run(capsys, "show", "--origin")
        assert (code, err) == (0, "")
        lines = out.splitlines()
        assert f"voice.silence_ms = 900  # {config}:3" in lines
        assert 'voice.language = "en"  # default' in lines
        assert "audio.device is not set  # default" in lines
        assert "voice.silence_ms = 900" in run(capsys, "show")[1].splitlines()

    def test_secrets_and_control_characters_are_not_shown(
        self, config: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        config.write_text('[socket]\ntoken = "0123456789abcdef"\n[audio]\ndevice = "a\\u001b[31m"\n')
        out = run(capsys, "show")[1] + run(capsys, "show", "--json")[1] + run(capsys, "get", "socket.token")[1]
        assert "0123456789abcdef" not in out
        assert 'socket.token = "..."' in out
        assert "\x1b" not in run(capsys, "get", "audio.device")[1]

    def test_unknown_keys(self, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
        config.write_text("[voice]\nsilense_ms = 5\n")
        code, out, err = run(capsys, "show")
        assert code == 2
        assert f"{config}:2: The runner knows no key voice.silense_ms." in err
        assert "voice.silence_ms = 1200" in out
        assert json.loads(run(capsys, "show", "--json")[1])["unknown"] == [{"key": "voice.silense_ms", "line": 2}]

    @pytest.mark.parametrize("text", ["a = ", "\xff".encode("latin-1")])
    def test_what_is_no_toml(self, config: Path, capsys: pytest.CaptureFixture[str], text: str | bytes) -> None:
        config.write_bytes(text if isinstance(text, bytes) else text.encode())
        code, _, err = run(capsys, "show")
        assert code == 2
        assert f"{config}:1: " in err

    def test_without_a_file(self, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
        config.unlink()
        code, _, err = run(capsys, "show")
        assert code == 2
        assert "utter config init" in err

    def test_whether_the_runner_has_read_it(
        self, config: Path, runner: FakeRunner, capsys: pytest.CaptureFixture[str]
    ) -> None:
        digest = load_config(config).digest
        for told, same, complaint in (
            ({"path": str(config), "digest": digest}, True, ""),
            ({"path": str(config), "digest": "0" * 64}, False, "has read an older version of this file"),
            ({"path": "/other.toml", "digest": digest}, False, "has read another file, /other.toml."),
        ):
            runner.answers["runner.status"] = {"config": told}
            assert json.loads(run(capsys, "show", "--json")[1])["running"] == {"path": told["path"], "same": same}
            assert complaint in run(capsys, "show")[2]
        # One that is older does not say.
        runner.answers["runner.status"] = {}
        assert json.loads(run(capsys, "show", "--json")[1])["running"] is None


class TestGet:
    @pytest.mark.usefixtures("config")
    def test_one_key(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(capsys, "get", "voice.silence_ms") == (0, "900\n", "")
        assert run(capsys, "get", "voice.language") == (0, "en\n", "")
        assert run(capsys, "get", "policy.url_schemes") == (0, '["http", "https", "mailto"]\n', "")
        code, out, err = run(capsys, "get", "audio.device")
        assert (code, out) == (1, "")
        assert "audio.device is not set" in err
        found = json.loads(run(capsys, "get", "voice.silence_ms", "--json")[1])
        assert found == {"key": "voice.silence_ms", "value": 900, "origin": "file", "line": 3, "secret": False}

    @pytest.mark.usefixtures("config")
    def test_a_table(self, capsys: pytest.CaptureFixture[str]) -> None:
        out = run(capsys, "get", "plugin.espeak")[1]
        assert 'plugin.espeak.id = "espeak"' in out
        assert "voice" not in out
        assert len(json.loads(run(capsys, "get", "audio", "--json")[1])) == len(
            run(capsys, "get", "audio")[1].splitlines()
        )

    @pytest.mark.parametrize(
        ("key", "complaint"),
        [
            ("voice.silense_ms", "There is no key voice.silense_ms. Did you mean voice.silence_ms"),
            ("plugin.espek", "Did you mean plugin.espeak"),
            ("a b", "'a b' is no key"),
        ],
    )
    @pytest.mark.usefixtures("config")
    def test_what_is_no_key(self, capsys: pytest.CaptureFixture[str], key: str, complaint: str) -> None:
        code, _, err = run(capsys, "get", key)
        assert code == 2
        assert complaint in err


class TestSet:
    def test_it_changes_the_key_and_nothing_else(self, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
        code, out, err = run(capsys, "set", "voice.silence_ms", "1000")
        assert (code, err) == (0, "")
        assert "utter reload" in out
        assert config.read_text() == CONFIG.replace("900", "1000")
        assert stat.S_IMODE(config.stat().st_mode) == 0o640
        assert [one.name for one in config.parent.iterdir()] == ["runner.toml"]

    @pytest.mark.parametrize(
        ("key", "said", "value"),
        [
            ("audio.cues", "false", False),
            ("audio.device", "My Microphone", "My Microphone"),
            ("audio.device", "12", "12"),
            ("policy.enabled_ops", '["terminal"]', ["terminal"]),
            ("policy.ops.open_url", '{ rate = "1/minute" }', {"rate": "1/minute"}),
            ("policy.ops.open_url.rate", "1/minute", "1/minute"),
            ("plugin.espeak.settings.voice", "en-us", "en-us"),
            ("plugin.espeak.env.A", "b", "b"),
            ("plugin.whisper.settings.threads", "2", 2),
            ("log.level", "debug", "debug"),
        ],
    )
    def test_values_are_read_as_what_the_key_holds(
        self, config: Path, capsys: pytest.CaptureFixture[str], key: str, said: str, value: object
    ) -> None:
        assert run(capsys, "set", key, said)[0] == 0
        node: Any = tomllib.loads(config.read_text())
        for part in key.split("."):
            node = next(one for one in node if one["id"] == part) if isinstance(node, list) else node[part]
        assert node == value
        assert run(capsys, "set", key, said) == (0, "", "utter: It says that already.\n")

    @pytest.mark.parametrize(
        ("key", "said", "complaint"),
        [
            ("voice.silence_ms", "5", "[voice] silence_ms must be a whole number from 300 to 10000, not the number 5."),
            ("voice.silence_ms", "much", "not the text 'much'"),
            ("voice.silense_ms", "500", "[voice] has no key 'silense_ms'; did you mean 'silence_ms'?"),
            ("voicee.silence_ms", "500", "did you mean [voice]?"),
            ("audio.source", "wav", "needs the key 'wav_path'"),
            ("hotkeys.toggle", "NOKEY", '"NOKEY" is not a key name'),
            ("plugin.whisper.settings.modle", "x", "There is no setting modle. Did you mean model?"),
            ("plugin.wisper.enabled", "true", "no plugin of that id ships with the runner"),
            ("voice", "1", "voice is a table; set the keys in it."),
            ("plugin", "1", "plugin is followed by the plugin's id"),
            ("audio.device", "", "text that is not empty"),
        ],
    )
    def test_what_the_runner_would_refuse_changes_nothing(
        self, config: Path, capsys: pytest.CaptureFixture[str], key: str, said: str, complaint: str
    ) -> None:
        code, out, err = run(capsys, "set", key, said)
        assert (code, out) == (2, "")
        assert complaint in err
        assert ".runner.toml." not in err
        assert config.read_text() == CONFIG
        assert [one.name for one in config.parent.iterdir()] == ["runner.toml"]

    def test_what_was_wrong_before_is_told_and_does_not_stand_in_the_way(
        self, config: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        config.write_text('[voice]\nsilence_ms = 5\ntap = "x"\n')
        code, _, err = run(capsys, "set", "voice.silence_ms", "500")
        assert code == 0
        assert f"Warning: {config}:3: [voice] tap must be" in err
        assert run(capsys, "unset", "voice.tap")[0] == 0
        assert tomllib.loads(config.read_text()) == {"voice": {"silence_ms": 500}}

    def test_what_is_unwise_is_told(self, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
        code, _, err = run(capsys, "set", "policy.ops.open_url.confirm", "never")
        assert code == 0
        assert "Warning: " not in err or str(config) in err
        assert run(capsys, "set", "socket.allow_same_uid", "true")[2].startswith("utter: There was no [socket] section")

    def test_secrets_do_not_come_from_the_command_line(
        self, config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        code, _, err = run(capsys, "set", "socket.token", "0123456789abcdef")
        assert code == 2
        assert "socket.token is a secret" in err
        assert "0123456789abcdef" not in err
        monkeypatch.setattr(sys, "stdin", io.StringIO("0123456789abcdef\n"))
        code, out, err = run(capsys, "set", "socket.token")
        assert code == 0
        assert "0123456789abcdef" not in out + err
        # The mode is 0640.
        assert f"run chmod 600 {config}" in err
        assert tomllib.loads(config.read_text())["socket"]["token"] == "0123456789abcdef"  # noqa: S105 - a test's
        monkeypatch.setenv("TOKEN", "0123456789abcdef")
        assert run(capsys, "set", "socket.token", "env:TOKEN")[0] == 0
        assert run(capsys, "get", "socket.token")[1] == "env:TOKEN\n"

    @pytest.mark.parametrize("said", ["", "\n", "two\nlines\n", "x" * 5000, "a\x1bb\n"])
    def test_what_is_no_secret(
        self, config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, said: str
    ) -> None:
        monkeypatch.setattr(sys, "stdin", io.StringIO(said))
        assert run(capsys, "set", "socket.token")[0] == 2
        assert config.read_text() == CONFIG

    @pytest.mark.usefixtures("config")
    def test_a_value_is_wanted(self, capsys: pytest.CaptureFixture[str]) -> None:
        code, _, err = run(capsys, "set", "audio.device")
        assert code == 2
        assert "utter config set audio.device VALUE" in err

    def test_a_link_stays_one_and_paths_count_from_it(self, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
        real = config.parents[2] / "dotfiles" / "utter.toml"
        real.parent.mkdir()
        config.rename(real)
        config.symlink_to(real)
        (config.parent / "x.wav").touch()
        assert run(capsys, "set", "audio.wav_path", "x.wav")[0] == 0
        assert config.readlink() == real
        assert 'wav_path = "x.wav"' in real.read_text()
        assert [one.name for one in real.parent.iterdir()] == ["utter.toml"]

    def test_a_byte_order_mark_and_line_ends_stay(self, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
        config.write_bytes(b"\xef\xbb\xbf" + CONFIG.replace("\n", "\r\n").encode())
        assert run(capsys, "set", "voice.language", "de")[0] == 0
        data = config.read_bytes()
        assert data.startswith(b"\xef\xbb\xbf# mine\r\n")
        assert data.count(b"\n") == data.count(b"\r\n")

    def test_who_changes_it_meanwhile_is_not_written_over(self, config: Path) -> None:
        def edit(file: configuring.ConfigFile) -> str:
            config.write_text(f"{CONFIG}# theirs\n")
            return file.text.replace("900", "800")

        with pytest.raises(OperateError, match="was changed by somebody else meanwhile"):
            configuring.change_file(config, edit)
        assert config.read_text().endswith("# theirs\n")
        assert [one.name for one in config.parent.iterdir()] == ["runner.toml"]

    def test_a_directory_that_cannot_be_written_to(self, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_arguments: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", refuse)
        with pytest.raises(OperateError, match="cannot be written: No space left on device"):
            configuring.change_file(config, lambda file: file.text.replace("900", "800"))
        assert config.read_text() == CONFIG
        assert [one.name for one in config.parent.iterdir()] == ["runner.toml"]

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
    def test_the_owner_stays(self, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
        os.chown(config, 65534, 65534)
        assert run(capsys, "set", "voice.silence_ms", "1000")[0] == 0
        found = config.stat()
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (65534, 65534, 0o640)

    def test_json(self, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
        out = run(capsys, "set", "voice.language", "de", "--json")[1]
        assert json.loads(out) == {"path": str(config), "key": "voice.language", "changed": True, "warnings": []}


class TestUnset:
    def test_keys_and_tables(self, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(capsys, "unset", "voice.silence_ms")[0] == 0
        assert config.read_text() == CONFIG.replace("silence_ms = 900  # shorter\n", "")
        assert run(capsys, "unset", "plugin.espeak")[0] == 0
        assert config.read_text() == "# mine\n[voice]\n"

    @pytest.mark.usefixtures("config")
    def test_what_is_not_there(self, capsys: pytest.CaptureFixture[str]) -> None:
        code, _, err = run(capsys, "unset", "voice.language")
        assert code == 2
        assert "voice.language is not set." in err
