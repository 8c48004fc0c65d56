"""`utter models` in a process of its own, against a server that is as bad as it likes."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.model_server import ModelServer, Way
from support.terminal import UTTER, Terminal
from utter_protocol.models import content_path, link_path, part_path
from utter_runner.cli.text import sized

CONTENT = bytes(range(256)) * 400
DIGEST = hashlib.sha256(CONTENT).hexdigest()


class Home:
    """A user with a configuration; the commands run as theirs."""

    def __init__(self, path: Path, server: ModelServer) -> None:
        self.path, self.server = path, server
        self.store = path / "data" / "utter" / "models"
        self.config = path / "config" / "utter" / "runner.toml"
        self.config.parent.mkdir(parents=True)
        self.env = {
            **os.environ,
            **server.env,
            "HOME": str(path),
            "XDG_DATA_HOME": str(path / "data"),
            "XDG_CONFIG_HOME": str(path / "config"),
            "XDG_DATA_DIRS": "/nowhere",
        }
        self.configure(("ear", "base/model.bin", {}))

    def configure(self, *models: tuple[str, str, dict[str, Any]], enabled: bool = True) -> None:
        """Write a configuration with these models: plugin, name, and what is other than the truth."""
        text = ""
        for plugin in dict.fromkeys(plugin for plugin, _, _ in models):
            text += f'[[plugin]]\nid = "{plugin}"\nentrypoint = ["true"]\nenabled = {str(enabled).lower()}\n'
            for _, name, changes in (one for one in models if one[0] == plugin):
                model = self.server.model(name, **changes)
                text += f'[[plugin.models]]\nname = "{name}"\nurl = "{model.url}"\n'
                text += f'sha256 = "{model.sha256}"\nsize = {model.size}\n'
        self.config.write_text(text)

    def run(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        """Run the command without a terminal; return what it wrote to stdout and stderr."""
        done = subprocess.run(
            [*UTTER, "models", *arguments],
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == code, done
        return done.stdout, done.stderr

    def told(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", code=code)[0])

    def begun(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start the command; the server says when it stands still."""
        return subprocess.Popen(
            [*UTTER, "models", *arguments],
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )


@pytest.fixture
def home(tmp_path: Path):  # noqa: ANN201 - a generator of a home
    with ModelServer(tmp_path, CONTENT) as server:
        yield Home(tmp_path / "home", server)


def test_from_missing_to_there_and_gone(home: Home) -> None:
    (row,) = home.told("list")["models"]
    assert (row["plugin"], row["state"], row["have"], row["used_by"]) == ("ear", "missing", 0, ["ear"])
    shown, _ = home.run("list")
    assert "base/model.bin" in shown
    assert "missing" in shown
    assert "utter models pull ear" in shown
    out, err = home.run("pull", "--yes")
    assert "base/model.bin for ear: 100.0 KiB from localhost\n" in err
    assert f"100.0 KiB in 1 files, into {home.store}\n" in err
    assert out == (
        "base/model.bin is there (100.0 KiB, for ear).\n"
        "A runner that is running takes it with: utter plugins restart ear\n"
    )
    (row,) = home.told("list")["models"]
    assert row["state"] == "present"
    assert Path(row["path"]).read_bytes() == CONTENT
    assert home.run("pull", "--yes")[0] == "All of it is there.\n"
    assert home.run("verify")[0] == "1 files, 100.0 KiB: none damaged.\n"
    assert len(home.server.requests) == 1
    assert "--force deletes them" in home.run("remove", "ear", code=2)[1]
    out, _ = home.run("remove", "base", "--force")
    assert out == "Removed base/model.bin of ear.\n100.0 KiB is free again.\n"
    assert home.told("list")["models"][0]["state"] == "missing"


def test_nothing_is_fetched_that_nobody_agreed_to(home: Home) -> None:
    _, err = home.run("pull", code=3)
    assert "There is no terminal to ask on, so nothing is fetched: --yes agrees" in err
    with Terminal([*UTTER, "models", "pull"], home.env) as terminal:
        terminal.wait_for("Fetch them? [y/N]")
        terminal.type("n\n")
        assert terminal.process.wait(60) == 3
    assert home.server.requests == []
    assert not home.store.exists()


def test_at_a_terminal_there_is_a_bar(home: Home) -> None:
    home.server.ways = [Way("drop", 5000)]
    with Terminal([*UTTER, "models", "pull", "ear"], {**home.env, "COLUMNS": "120"}) as terminal:
        terminal.wait_for("Fetch them? [y/N]")
        terminal.type("y\n")
        terminal.wait_for("base/model.bin: The connection ended too early; 5000 of 102400 bytes are there. Again.")
        terminal.wait_for("100.0/100.0 KiB")
        terminal.wait_for("is there")
        assert terminal.process.wait(60) == 0
    assert [asked for _, asked in home.server.requests] == ["", "bytes=5000-"]


def test_events_for_programs(home: Home) -> None:
    home.server.ways = [Way("drop", 5000)]
    out, _ = home.run("pull", "--yes", "--json")
    events = [json.loads(line) for line in out.splitlines()]
    assert [one["event"] for one in events] == ["begun", "note", "progress", "done"]
    assert {one["name"] for one in events} == {"base/model.bin"}
    assert events[2]["have"] == len(CONTENT)
    assert events[3]["plugins"] == ["ear"]
    assert home.told("pull", "--yes") == {"event": "nothing", "models": 1}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_what_was_killed_on_the_way_is_gone_on_with(home: Home, number: signal.Signals) -> None:
    home.server.ways = [Way("stall", 7000)]
    with home.begun("pull", "--yes") as process:
        assert home.server.stalled.wait(60)
        part = part_path(home.store, DIGEST)
        # Sent is not yet received.
        while not (part.exists() and part.stat().st_size == 7000):
            assert process.poll() is None
            os.sched_yield()
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == (130 if number == signal.SIGINT else -number)
    kept = b"Interrupted. What has come of base/model.bin is kept, and the same command goes on from there."
    assert (kept in err) is (number == signal.SIGINT)
    assert b"Traceback" not in err
    (row,) = home.told("list")["models"]
    assert (row["state"], row["have"]) == ("partial", 7000)
    assert "partial (6 %)" in home.run("list")[0]
    _, told = home.run("pull", "--yes")
    assert "93.2 KiB of it to come" in told
    assert home.server.requests[-1][1] == "bytes=7000-"
    assert home.told("list")["models"][0]["state"] == "present"


def test_two_processes_fetch_it_once(home: Home) -> None:
    home.server.ways = [Way("stall", 7000)]
    with home.begun("pull", "--yes") as first:
        assert home.server.stalled.wait(60)
        with home.begun("pull", "--yes") as second:
            assert second.stderr is not None
            while b"waiting for it" not in (line := second.stderr.readline()):
                assert line
            first.kill()
            first.communicate(timeout=60)
            out, err = second.communicate(timeout=60)
            assert second.returncode == 0, err
    assert b"is there" in out
    assert len(home.server.requests) == 2
    assert content_path(home.store, DIGEST).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("way", "changes", "code", "message"),
    [
        (Way("wrong"), {}, 1, "its sha256 is"),
        (Way("chunked", 1), {}, 1, "the server sends more, 102401 by now"),
        (Way("serve"), {"size": 5}, 1, "that has 5 bytes, and the server has 102400"),
        (Way("serve"), {"sha256": "0" * 64}, 1, f"its sha256 is {DIGEST}, and it must be {'0' * 64}"),
        (Way("status", 404), {}, 1, "the server answered 404"),
        (Way("status", 503, "9999"), {}, 4, "wants to be asked again in 9999 s"),
        (Way("redirect", 0, "http://localhost/"), {}, 1, "only https is followed"),
    ],
)
def test_one_that_fails_does_not_keep_the_others_from_coming(
    home: Home, way: Way, changes: dict[str, Any], code: int, message: str
) -> None:
    other = {"sha256": hashlib.sha256(b"x").hexdigest(), "size": 1, "url": home.server.url.replace("model", "other")}
    home.configure(("ear", "bad.bin", changes), ("ear", "good.bin", other))
    home.server.ways = [way, Way("serve")]
    if way.name == "serve":
        home.server.ways[0] = Way("ignore_range")
    # The second one is another file of the same server: it is wrong, too, unless the server has what it wants.
    _, err = home.run("pull", "--yes", code=1)
    assert message in err
    assert "good.bin" in err
    assert code in {1, 4}
    home.configure(("ear", "bad.bin", changes))
    home.server.ways = [way] if way.name != "serve" else []
    assert message in home.run("pull", "--yes", code=code)[1]
    assert home.told("list")["models"][0]["state"] in {"missing", "partial"}


def test_damage_is_found_and_mended(home: Home) -> None:
    home.configure(("ear", "a.bin", {}), ("mouth", "b.bin", {}))
    home.run("pull", "--yes")
    assert len(home.server.requests) == 1
    path = content_path(home.store, DIGEST)
    path.chmod(0o644)
    path.write_bytes(b"\1" + CONTENT[1:])
    assert [one["state"] for one in home.told("list")["models"]] == ["present", "present"]
    out, _ = home.run("verify", code=1)
    assert f"{path} (a.bin of ear, b.bin of mouth) is damaged: utter models pull --check ear\n" in out
    (row,) = home.told("verify", code=1)["damaged"]
    assert row == {"sha256": DIGEST, "plugins": ["ear", "mouth"], "command": "utter models pull --check ear"}
    home.run("pull", "--check", "ear", "--yes")
    assert home.run("verify")[0] == "1 files, 100.0 KiB: none damaged.\n"
    assert link_path(home.store, "mouth", "b.bin").read_bytes() == CONTENT


def test_what_is_not_needed_any_more_goes(home: Home) -> None:
    home.run("pull", "--yes")
    home.configure(("mouth", "b.bin", {}), enabled=False)
    # What another plugin has fetched needs no server, and a plugin that is off is not asked for.
    assert home.run("pull", "--yes")[0] == "No plugin in the configuration needs a model.\n"
    assert home.run("pull", "mouth")[0] == "All of it is there.\n"
    assert home.told("list")["models"][0]["state"] == "present"
    assert home.told("remove", "--unused") == {"removed": ["ear/base/model.bin"], "freed": 0}
    home.config.write_text("")
    assert home.told("list")["unused"] == [{"sha256": DIGEST, "size": len(CONTENT)}]
    assert "100.0 KiB in 1 files is of no use: utter models remove --unused" in home.run("list")[0]
    assert home.told("remove", "--unused") == {"removed": ["mouth/b.bin"], "freed": len(CONTENT)}
    assert not any(home.store.glob("*/*"))
    assert len(home.server.requests) == 1


def test_wrong_use(home: Home) -> None:
    assert "Name a plugin or a model, or say --unused" in home.run("remove", code=2)[1]
    assert "There is no model 'nose'" in home.run("pull", "nose", code=2)[1]
    home.config.write_text("[[plugin]]\nid = 3")
    assert "runner.toml:2" in home.run("list", code=2)[1]


def test_where_nothing_can_be_written(home: Home) -> None:
    (home.path / "data").mkdir()
    (home.path / "data" / "utter").write_text("in the way")
    assert "models/parts: Not a directory" in home.run("pull", "--yes", code=2)[1]


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.0 KiB"), (75 * 2**20, "75.0 MiB"), (5 * 2**40, "5120.0 GiB")],
)
def test_sizes_for_people(count: int, text: str) -> None:
    assert sized(count) == text
