from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support import audio, pipewire

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "headless_audio.py"


def command(*arguments: str) -> list[str]:
    return [sys.executable, str(SCRIPT), *arguments]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), env={**os.environ, **environment}, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("arguments", [[], ["--play", "a.wav", "--", "true"], ["--if-none"]])
def test_wrong_usage_says_what_is_wanted(arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert "give either a COMMAND after -- or --play FILE.wav" in done.stderr


def test_without_pipewire_it_says_what_to_install(tmp_path: Path) -> None:
    done = run("--", "true", PATH=str(tmp_path))
    assert done.returncode == 1
    assert "pipewire is not installed" in done.stderr
    assert "apt-get install pipewire wireplumber" in done.stderr


@pytest.mark.pipewire
@pytest.mark.skipif(bool(pipewire.missing), reason=f"not installed: {', '.join(pipewire.missing)}")
class TestWithPipeWire:
    def test_the_command_finds_the_microphone_and_its_exit_status_is_passed_on(self) -> None:
        done = run("--", "sh", "-c", "pw-metadata 0 default.audio.source; pw-metadata 0 default.audio.sink; exit 7")
        assert done.returncode == 7
        assert "key:'default.audio.source' value:'{\"name\":\"vmic\"}'" in done.stdout
        assert "key:'default.audio.sink' value:'{\"name\":\"speaker\"}'" in done.stdout
        assert len(done.stderr.splitlines()) == 1
        assert not Path(done.stderr.split(" in ")[-1].strip()).exists()

    def test_what_is_said_through_play_is_recorded(self, tmp_path: Path) -> None:
        said = audio.babble(1.5)
        spoken = audio.write_wav(tmp_path / "spoken.wav", said)
        heard = tmp_path / "heard.raw"
        record = "stdbuf -o0 pw-record --rate 16000 --channels 1 --format f32 --latency 100ms -"
        wait_for_sound = f"while [ ! -s {heard} ]; do sleep 0.01; done"
        play = f"{sys.executable} {SCRIPT} --play {spoken}"
        # After the player has drained, what it played is on its way for some 100 ms.
        script = f"{record} > {heard} & {wait_for_sound}; {play} && sleep 0.5; code=$?; kill $!; exit $code"
        assert run("--", "sh", "-c", script).returncode == 0
        assert audio.found_share(audio.floats(heard.read_bytes()[: heard.stat().st_size // 4 * 4]), said) >= 0.5

    def test_signals_reach_the_command(self) -> None:
        for number, code in ((signal.SIGTERM, 9), (signal.SIGINT, 9), (signal.SIGHUP, 128 + signal.SIGHUP)):
            process = subprocess.Popen(
                command("--", "sh", "-c", "trap 'exit 9' TERM INT; echo ready; read _"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            with process:
                assert process.stdout is not None
                assert process.stdout.readline() == b"ready\n"
                process.send_signal(number)
                assert process.wait(timeout=20) == code

    def test_a_command_that_does_not_exist_is_named(self) -> None:
        done = run("--", "no-such-command")
        assert done.returncode == 127
        assert "no-such-command cannot be run: No such file or directory" in done.stderr

    def test_a_server_that_runs_is_used_if_that_is_wanted(self, tmp_path: Path) -> None:
        with pipewire.pipewire_bed(tmp_path) as bed:
            done = run("--if-none", "--", "printenv", "XDG_RUNTIME_DIR")
            assert done.stdout.strip() == bed.environment["XDG_RUNTIME_DIR"]
            bed.kill()
            done = run("--if-none", "--", "printenv", "XDG_RUNTIME_DIR")
            assert done.stdout.strip() != bed.environment["XDG_RUNTIME_DIR"]

    def test_the_daemons_die_with_the_script(self) -> None:
        process = subprocess.Popen(
            command("--", "sh", "-c", "pgrep -P $PPID -x 'pipewire|wireplumber'; echo; read _"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        with process:
            assert process.stdout is not None
            pids = [int(line) for line in iter(process.stdout.readline, b"\n")]
            handles = [os.pidfd_open(pid) for pid in pids]
            process.kill()
        assert len(handles) == 2
        for handle in handles:
            assert select.select([handle], [], [], 10)[0]
            os.close(handle)

    def test_a_daemon_that_ends_is_told_with_its_log(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        programs = tmp_path / "programs"
        programs.mkdir()
        (programs / "pipewire").write_text("#!/bin/sh\necho no memory today >&2\nexit 5\n")
        (programs / "pipewire").chmod(0o755)
        monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
        before = descriptors()
        with pytest.raises(pipewire.headless_audio.HeadlessAudioError) as caught, pipewire.pipewire_bed(tmp_path):
            pass
        assert "pipewire ended with exit status 5" in str(caught.value)
        assert "no memory today" in str(caught.value)
        assert descriptors() == before

    def test_a_deep_directory_does_not_make_the_socket_path_too_long(self, tmp_path: Path) -> None:
        deep = tmp_path / ("deep" * 30)
        deep.mkdir()
        with pipewire.pipewire_bed(deep) as bed:
            runtime = Path(bed.environment["XDG_RUNTIME_DIR"])
            assert (runtime / "pipewire-0").exists()
        assert not runtime.exists()


def descriptors() -> set[str]:
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}
