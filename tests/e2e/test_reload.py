"""The real daemon, whose configuration changes while it runs."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from support.daemon import QUIET, Daemon, asking, failing, hostile, hostile_argv, source
from utter_protocol.errors import ErrorCode, RpcError
from utter_runner.config.tokens import store
from utter_sdk.client import Client, RunnerUnavailable

OPEN = "[socket]\nallow_same_uid = true\n"
TOKEN = "correct horse battery"  # noqa: S105 - a test's
TIMEOUT = 60.0


def write(daemon: Daemon, config: str) -> None:
    """Put another configuration in place, as an editor does."""
    part = daemon.config.with_suffix(".part")
    part.write_text(config + QUIET)
    if daemon.config.is_dir():
        daemon.config.rmdir()
    part.replace(daemon.config)


def reload(client: Client) -> dict[str, Any]:
    return dict(client.call("runner.reload", {}, TIMEOUT))


def status(client: Client) -> dict[str, Any]:
    return dict(client.call("runner.status", {}, TIMEOUT))


def plugins(client: Client) -> dict[str, dict[str, Any]]:
    return {one["id"]: one for one in status(client)["plugins"]}


def control(client: Client, plugin: str, action: str, **more: Any) -> dict[str, Any]:
    return dict(client.call("runner.control", {"plugin": plugin, "action": action, **more}, TIMEOUT))


def ends(client: Client) -> bool:
    """Ask until the connection is closed."""
    with suppress(RpcError, OSError, RunnerUnavailable):
        while True:
            status(client)
    return True


def incarnation(client: Client, plugin: str) -> tuple[int, int]:
    found = plugins(client)[plugin]
    return found["pid"], found["epoch"]


# ---- plugins


def test_a_plugin_that_has_not_changed_loses_nothing_while_others_come_and_go(tmp_path: Path) -> None:
    """Requests in flight and a reliable stream, through many reloads."""
    same = OPEN + hostile("same") + source("source")
    first = same + hostile("gone") + hostile("other")
    second = same + hostile("new") + hostile("other", extra='env = { COLOUR = "red" }')
    answers: list[Any] = []
    over = threading.Event()

    def ask(client: Client) -> None:
        number = 0
        while not over.is_set():
            params = {"plugin": "same", "method": "echo", "params": {"n": number}}
            answers.append(client.call("runner.invoke", params, TIMEOUT)["params"]["n"] == number)
            number += 1

    with Daemon(tmp_path, first) as daemon, daemon.client() as client, daemon.client() as busy:
        before = incarnation(client, "same"), incarnation(client, "source")
        asker = threading.Thread(target=ask, args=(busy,))
        asker.start()
        try:
            with client.subscribe("flow", mode="reliable") as stream:
                seen = [stream.get(TIMEOUT)["n"]]
                for config in (second, first) * 3:
                    write(daemon, config)
                    answer = reload(client)
                    expected = {"added": ["gone"], "removed": ["new"]}
                    if config is second:
                        expected = {"added": ["new"], "removed": ["gone"]}
                    assert answer["plugins"] == {**expected, "restarted": ["other"]}
                    assert (answer["ok"], answer["problems"]) == (True, [])
                    seen += [stream.get(TIMEOUT)["n"] for _ in range(200)]
            assert seen == list(range(len(seen)))
        finally:
            over.set()
            asker.join()
        assert len(answers) > 0
        assert all(answers)
        assert (incarnation(client, "same"), incarnation(client, "source")) == before
        # Of several restarts that are wanted while one is under way, one comes about.
        daemon.wait_plugin("gone", "ready", epoch=2)
        daemon.wait_plugin("other", "ready", epoch=2)
        assert list(plugins(client)) == ["same", "source", "gone", "other"]


def test_dependents_are_degraded_when_their_provider_is_taken_away_and_recover(tmp_path: Path) -> None:
    user = OPEN + hostile("user", "requires=experimental/a@1")
    provider = hostile("giver", "provides=experimental/a@1")
    with Daemon(tmp_path, user + provider) as daemon, daemon.client() as client:
        before = incarnation(client, "user")
        write(daemon, user)
        assert reload(client)["plugins"]["removed"] == ["giver"]
        assert "experimental/a@1" in daemon.wait_plugin("user", "degraded")["detail"]
        write(daemon, user + provider.replace("[[plugin]]", "[[plugin]]\nenabled = false"))
        assert reload(client)["plugins"] == {"added": [], "removed": [], "restarted": []}
        write(daemon, user + provider)
        assert reload(client)["plugins"]["added"] == ["giver"]
        daemon.wait_plugin("user", "ready")
        # An id that comes back goes on counting.
        assert daemon.wait_plugin("giver", "ready")["epoch"] == 2
        assert incarnation(client, "user") == before


def test_one_that_does_not_come_up_holds_up_no_other_and_no_answer(tmp_path: Path) -> None:
    config = "[runner]\nhandshake_timeout_ms = 60000\n" + OPEN + hostile("same")
    with Daemon(tmp_path, config) as daemon, daemon.client() as client:
        write(daemon, config + hostile("mute", "hang=protocol.hello") + hostile("good"))
        assert reload(client)["plugins"]["added"] == ["mute", "good"]
        daemon.wait_plugin("good", "ready")
        assert plugins(client)["mute"]["status"] == "starting"
        # Nor its end.
        write(daemon, config + hostile("good"))
        assert reload(client)["plugins"]["removed"] == ["mute"]
        assert plugins(client)["good"]["status"] == "ready"


# ---- what is wrong


def broken_toml(daemon: Daemon) -> None:
    write(daemon, OPEN + "[voice\n")


def unknown_key(daemon: Daemon) -> None:
    write(daemon, OPEN + hostile("same") + '[voice]\nlanguge = "de"\n')


def removed(daemon: Daemon) -> None:
    daemon.config.unlink()


def directory(daemon: Daemon) -> None:
    daemon.config.unlink()
    daemon.config.mkdir()


def other_bytes(daemon: Daemon) -> None:
    daemon.config.write_bytes(b"# \xff\xfe\n")


def unreadable_manifest(daemon: Daemon) -> None:
    write(daemon, OPEN + hostile("same") + '[[plugin]]\nid = "added"\nmanifest = "/nowhere/utter-plugin.toml"\n')


def lost_secret(daemon: Daemon) -> None:
    write(daemon, OPEN + hostile("same", extra='secret_env = { KEY = "file:/nowhere/key" }'))


def lost_token(daemon: Daemon) -> None:
    write(daemon, OPEN + 'token = "env:NOT_SET_ANYWHERE"\n' + hostile("same"))


def pipe(daemon: Daemon) -> None:
    daemon.config.unlink()
    os.mkfifo(daemon.config)


def bad_key(daemon: Daemon) -> None:
    write(daemon, OPEN + hostile("same"))
    text = daemon.config.read_text()
    daemon.config.write_text(text.replace("enabled = false", 'push_to_talk = "KEY_NOWHERE"'))


@pytest.mark.parametrize(
    ("spoil", "where", "what"),
    [
        (broken_toml, "runner.toml:", "TOML"),
        (unknown_key, "runner.toml:", "did you mean 'language'"),
        (removed, "runner.toml:", "cannot be read"),
        (directory, "runner.toml:", "Is a directory"),
        (pipe, "runner.toml:", "a pipe, which can be read only once"),
        (other_bytes, "runner.toml:1:", "UTF-8"),
        (unreadable_manifest, "runner.toml:", "Plugin added: /nowhere"),
        (lost_secret, "runner.toml:", "/nowhere/key"),
        (lost_token, "runner.toml:", "NOT_SET_ANYWHERE"),
        (bad_key, "runner.toml:", "NOWHERE"),
    ],
)
def test_a_bad_configuration_changes_nothing_and_says_what_is_wrong_where(
    tmp_path: Path, spoil: Callable[[Daemon], None], where: str, what: str
) -> None:
    good = OPEN + hostile("same") + hostile("other")
    with Daemon(tmp_path, good) as daemon, daemon.client() as client:
        before = {name: incarnation(client, name) for name in ("same", "other")}
        spoil(daemon)
        answer = reload(client)
        assert not answer["ok"]
        assert any(where in problem and what in problem for problem in answer["problems"]), answer
        assert (answer["changed"], answer["plugins"]["removed"]) == ([], [])
        assert {name: incarnation(client, name) for name in plugins(client)} == before
        while what not in daemon.wait_for("not reloaded: "):
            pass
        told = [text for text in status(client)["warnings"] if "not in effect" in text]
        assert any(what in text for text in told)
        write(daemon, good)
        assert reload(client)["ok"]
        assert not any("not in effect" in text for text in status(client)["warnings"])


def test_an_empty_file_is_a_configuration_without_plugins(tmp_path: Path) -> None:
    with Daemon(tmp_path, OPEN + hostile("one") + hostile("two")) as daemon, daemon.client() as client:
        daemon.config.write_text(QUIET.replace("[hotkeys]\nenabled = false", ""))
        write(daemon, "")
        answer = reload(client)
        assert answer["plugins"]["removed"] == ["one", "two"]
        assert answer["changed"] == ["socket"]
        assert any("no [socket] section" in text for text in status(client)["warnings"])


def test_a_plugin_that_is_left_out_already_takes_nothing_with_it(tmp_path: Path) -> None:
    config = OPEN + '[[plugin]]\nid = "missing-one"\n' + hostile("good")
    with Daemon(tmp_path, config) as daemon, daemon.client() as client:
        write(daemon, config + '[voice]\nlanguage = "de"\n')
        answer = reload(client)
        assert (answer["ok"], answer["changed"]) == (True, ["voice.language"])
        assert any("missing-one" in problem for problem in answer["problems"])
        # One more is another matter.
        write(daemon, config + '[[plugin]]\nid = "missing-two"\n')
        assert not reload(client)["ok"]


def test_what_needs_a_restart_is_named_and_stays_as_it_was(tmp_path: Path) -> None:
    with Daemon(tmp_path, OPEN + hostile("good")) as daemon, daemon.client() as client:
        before = incarnation(client, "good")
        elsewhere = f"[runner]\nsocket_path = '{tmp_path}/other.sock'\nmax_clients = 9\n"
        write(daemon, elsewhere + OPEN + hostile("good"))
        for changed in (["runner.max_clients"], []):
            answer = reload(client)
            assert (answer["ok"], answer["changed"]) == (True, changed)
            assert answer["needs_restart"] == ["runner.socket_path"]
        assert any("runner.socket_path" in text for text in status(client)["warnings"])
        assert incarnation(client, "good") == before
        write(daemon, OPEN + hostile("good"))
        assert reload(client)["needs_restart"] == []
        assert not any("runner.socket_path" in text for text in status(client)["warnings"])


# ---- SIGHUP


def test_a_storm_of_hang_ups_ends_with_what_is_in_the_file(tmp_path: Path) -> None:
    configs = [OPEN + hostile("same") + hostile(name) for name in ("aa", "bb", "cc")]
    with Daemon(tmp_path, configs[0]) as daemon, daemon.client() as client:
        before = incarnation(client, "same")
        for number in range(60):
            write(daemon, configs[number % 3] if number < 59 else OPEN + hostile("same") + hostile("last"))
            os.kill(daemon.process.pid, signal.SIGHUP)  # type: ignore[union-attr] # it runs
        daemon.wait_plugin("last", "ready")
        # Those that were on their way out may still be there.
        with client.subscribe("runner.events") as events:
            while set(plugins(client)) != {"same", "last"}:
                events.get(TIMEOUT)
        assert incarnation(client, "same") == before


def test_a_hang_up_before_the_loop_runs_is_remembered(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, OPEN, wait=False)
    daemon.config.unlink()
    # Whoever opens it is past its first line, and waits.
    os.mkfifo(daemon.config)
    with daemon:
        with daemon.config.open("w") as pipe:
            assert daemon.process is not None
            os.kill(daemon.process.pid, signal.SIGHUP)
            write(daemon, OPEN + hostile("later"))
            pipe.write(OPEN + hostile("early") + QUIET)
        daemon.wait_for("reloaded: ")
        assert "added: later; removed: early" in daemon.log[-1]
        daemon.wait_plugin("later", "ready")


# ---- people


def test_one_that_is_stopped_stays_so_until_it_is_started(tmp_path: Path) -> None:
    config = OPEN + hostile("good") + hostile("other")
    with Daemon(tmp_path, config) as daemon, daemon.client() as client:
        stopped = control(client, "good", "stop")
        assert (stopped["status"], stopped["pid"], stopped["changed"]) == ("stopped", None, True)
        assert "stopped by pid" in stopped["detail"]
        assert "utter plugins start good" in stopped["detail"]
        assert control(client, "good", "stop")["changed"] is False
        with pytest.raises(RpcError) as refused:
            client.call("runner.invoke", {"plugin": "good", "method": "echo"}, TIMEOUT)
        assert refused.value.code == ErrorCode.PLUGIN_FAILED
        assert "stopped by pid" in refused.value.message
        # Not by a reload, whether it has changed or not.
        assert reload(client)["ok"]
        write(daemon, OPEN + hostile("good", extra='env = { COLOUR = "red" }') + hostile("other"))
        assert reload(client)["plugins"]["restarted"] == []
        assert plugins(client)["good"]["status"] == "stopped"
        started = control(client, "good", "start")
        assert (started["status"], started["epoch"], started["changed"]) == ("ready", 2, True)
        again = control(client, "good", "start")
        assert (again["pid"], again["epoch"], again["changed"]) == (started["pid"], 2, False)
        assert plugins(client)["other"]["epoch"] == 1


def test_a_restart_lets_it_finish_and_asks_nothing_more_of_it(tmp_path: Path) -> None:
    def ask(daemon: Daemon) -> Any:
        with daemon.client() as client:
            return client.call("runner.invoke", {"plugin": "good", "method": "wait"}, TIMEOUT)

    plugin = hostile("good", "hang=wait", "part-at-eof")
    with (
        Daemon(tmp_path, OPEN + plugin) as daemon,
        daemon.client() as client,
        ThreadPoolExecutor(4) as threads,
    ):
        pending = [threads.submit(ask, daemon) for _ in range(4)]
        while client.call("runner.invoke", {"plugin": "good", "method": "pid"}, TIMEOUT)["kept"] < len(pending):
            pass
        assert control(client, "good", "restart")["epoch"] == 2
        for one in pending:
            one.result(TIMEOUT)


def test_one_that_has_failed_is_started_again_and_one_that_fails_is_told(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    plugin = f"""[[plugin]]
id = "late"
restart = "never"
entrypoint = ["sh", "-c", "test -e {gate} && exec {" ".join(hostile_argv("late"))}"]
"""
    with Daemon(tmp_path, OPEN + plugin) as daemon, daemon.client() as client:
        assert plugins(client)["late"]["status"] == "failed"
        for action in ("start", "restart"):
            found = control(client, "late", action)
            assert (found["status"], found["changed"]) == ("failed", True)
        gate.touch()
        assert control(client, "late", "start")["status"] == "ready"


def test_waiting_for_a_plugin_is_bounded(tmp_path: Path) -> None:
    config = "[runner]\nhandshake_timeout_ms = 60000\n" + OPEN + hostile("good")
    with Daemon(tmp_path, config) as daemon, daemon.client() as client:
        write(daemon, config.replace("'good'", "'good', 'hang=protocol.hello'"))
        assert reload(client)["plugins"]["restarted"] == ["good"]
        with pytest.raises(RpcError) as late:
            control(client, "good", "start", timeout_ms=200)
        assert late.value.code == ErrorCode.TIMED_OUT
        assert "good is" in late.value.message


@pytest.mark.parametrize(
    ("params", "code", "words"),
    [
        ({"plugin": "nobody", "action": "stop"}, ErrorCode.CAPABILITY_MISSING, "nobody"),
        ({"plugin": "good", "action": "kill"}, ErrorCode.INVALID_PARAMS, "action"),
        ({"plugin": "good", "action": "stop", "timeout_ms": 0}, ErrorCode.INVALID_PARAMS, "timeout_ms"),
        ({"action": "stop"}, ErrorCode.INVALID_PARAMS, "plugin"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    tmp_path: Path, params: dict[str, Any], code: int, words: str
) -> None:
    with Daemon(tmp_path, OPEN + hostile("good")) as daemon, daemon.client() as client:
        with pytest.raises(RpcError, match=words) as refused:
            client.call("runner.control", params, TIMEOUT)
        assert refused.value.code == code
        assert plugins(client)["good"]["status"] == "ready"


@pytest.mark.parametrize("method", ["runner.control", "runner.reload"])
def test_plugins_may_not(tmp_path: Path, method: str) -> None:
    asks = [{"method": method, "params": {"plugin": "sly", "action": "restart"}}]
    script = {"on": {"work": {"asks": asks}}}
    with Daemon(tmp_path, OPEN + asking("sly", script)) as daemon, daemon.client() as client:
        answer = client.call("runner.invoke", {"plugin": "sly", "method": "work"}, TIMEOUT)
        assert answer["answers"][0]["code"] == ErrorCode.METHOD_NOT_FOUND
        assert plugins(client)["sly"]["epoch"] == 1


# ---- other sections


def test_rules_hold_from_the_next_step_on(tmp_path: Path) -> None:
    with Daemon(tmp_path, OPEN) as daemon, daemon.client() as client:
        step = {"op": "open_url", "args": {"url": "https://a.example/"}}
        before = client.call("policy.explain", step, TIMEOUT)["rule"]
        write(daemon, OPEN + '[policy]\ndisabled_ops = ["open_url"]\n')
        assert reload(client)["changed"] == ["policy.disabled_ops"]
        assert client.call("policy.explain", step, TIMEOUT)["rule"] != before


def test_whoever_would_not_be_let_in_any_more_goes_once_it_has_its_answer(tmp_path: Path) -> None:
    with Daemon(tmp_path, OPEN + f'token = "{TOKEN}"\n' + hostile("good")) as daemon:
        with daemon.client() as plain, daemon.client(TOKEN) as other:
            write(daemon, f'[socket]\ntoken = "{TOKEN}"\n' + hostile("good"))
            assert reload(plain)["changed"] == ["socket.allow_same_uid"]
            # Both were let in as a program of this user: a token was not what opened the door to either.
            for client in (plain, other):
                assert ends(client)
        with daemon.client(TOKEN) as known:
            assert plugins(known)["good"]["epoch"] == 1
            write(daemon, f'[socket]\ntoken = "{TOKEN} staple"\n' + hostile("good"))
            assert reload(known)["changed"] == ["socket.token"]
            assert ends(known)
        with daemon.client(TOKEN + " staple") as known:
            assert plugins(known)["good"]["epoch"] == 1


def test_a_stored_token_outlives_a_change_of_the_configured_one(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, f'[socket]\ntoken = "{TOKEN}"\n')
    stored = store("mine", "another horse battery", datetime.now(UTC))
    home = Path(daemon.env["HOME"]) / ".local/state/utter"
    home.mkdir(parents=True, mode=0o700)
    path = home / "tokens.toml"
    path.touch(mode=0o600)
    path.write_text(
        f'[[token]]\nname = "mine"\ncreated = {stored.created.isoformat()}\nsalt = "{stored.salt}"\n'
        f'hash = "{stored.hash}"\n'
    )
    with daemon, daemon.client("another horse battery") as known:
        write(daemon, "[socket]\n")
        assert reload(known)["changed"] == ["socket.token"]
        assert status(known)["state"] == "ready"


def test_the_audit_trail_can_be_switched_off_and_on(tmp_path: Path) -> None:
    with Daemon(tmp_path, '[log]\naudit = "off"\n' + OPEN) as daemon, daemon.client() as client:
        assert status(client)["audit"] == {"mode": "off"}
        for mode in ("required", "on", "off", "on"):
            write(daemon, f'[log]\naudit = "{mode}"\n' + OPEN)
            assert reload(client)["changed"] == ["log.audit"]
            found = status(client)["audit"]
            assert (found["mode"], "path" in found) == (mode, mode != "off")


def test_another_source_of_audio_is_opened(tmp_path: Path) -> None:
    recording = next((Path(__file__).parents[1] / "data/audio/en").glob("recorded_*.wav"))
    shutil.copy(recording, tmp_path / "said.wav")
    with Daemon(tmp_path, OPEN) as daemon, daemon.client() as client:
        assert not status(client)["audio"]["open"]
        audio = f'source = "wav"\nwav_path = "{tmp_path}/said.wav"'
        daemon.config.write_text(OPEN + QUIET.replace('source = "none"', audio))
        with client.subscribe("runner.events") as events:
            assert reload(client)["changed"] == ["audio.source", "audio.wav_path"]
            while not status(client)["audio"]["open"]:
                events.get(TIMEOUT)
        assert "said.wav" in status(client)["audio"]["device"]


def test_the_log_speaks_up_and_the_command_line_has_the_last_word(tmp_path: Path) -> None:
    with Daemon(tmp_path, OPEN + hostile("good")) as daemon, daemon.client() as client:
        write(daemon, '[log]\nlevel = "debug"\n' + OPEN + hostile("good"))
        assert reload(client)["changed"] == ["log.level"]
        control(client, "good", "restart")
        daemon.wait_for("DEBUG")


def test_hotkeys_that_are_wrong_are_refused_at_the_start_as_well(tmp_path: Path) -> None:
    config = '[hotkeys]\npush_to_talk = "KEY_NOWHERE"\n[audio]\nsource = "none"\n'
    with failing(tmp_path, config, quiet=False) as (code, said):
        assert code == 2
        assert "NOWHERE" in said
