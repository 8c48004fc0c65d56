"""What is said of permissions, when it is found out, and when what was found out before counts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from utter_runner.supervision.launch import SpawnError
from utter_runner.supervision.sandbox import probe
from utter_runner.supervision.sandbox.assurance import Assurance, identity
from utter_runner.supervision.sandbox.findings import BESIDES, Finding
from utter_runner.supervision.sandbox.wrappers import Sandbox
from utter_runner.supervision.spec import PluginSpec

SANDBOX = Sandbox(wrappers=("bubblewrap", "landlock"), bwrap="/b", bwrap_version=(0, 8), landlock_abi=6)
HELD = Finding(refused=True, reason="it was tried and refused")
OPEN = Finding(refused=False, reason="it connected to somebody")


class Prober:
    """In place of `probe`: remembers what it was asked, and finds only the network open."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.error: Exception | None = None

    def __call__(self, _sandbox: Any, permissions: Iterable[str], _environ: Any, _socket: str) -> dict[str, Finding]:
        self.asked.append(tuple(permissions))
        if self.error is not None:
            raise self.error
        return {name: OPEN if name == "network" else HELD for name in ("network", "gpu", "screen", *BESIDES)}


@pytest.fixture
def prober(monkeypatch: pytest.MonkeyPatch) -> Prober:
    made = Prober()
    monkeypatch.setattr(probe, "probe", made)
    return made


def spec(*permissions: str, sandbox: Sandbox | None = SANDBOX, name: str = "timer") -> PluginSpec:
    return PluginSpec(id=name, argv=("x",), permissions=permissions, sandbox=sandbox)


def make(tmp_path: Path, *specs: PluginSpec, changes: list[int] | None = None) -> Assurance:
    heard = changes if changes is not None else []
    return Assurance(specs, {"XDG_CACHE_HOME": str(tmp_path)}, "/r.sock", lambda: heard.append(1))


def states(made: Assurance, *permissions: str, name: str = "timer") -> list[tuple[str, bool, str]]:
    state = made.describe(name, permissions)
    assert all(one.enforced is not one.advisory for one in (*state.permissions, *state.besides))
    return [(one.name, one.enforced, state.reasons[one.name]) for one in state.permissions]


async def test_each_permission_is_tried_without_it_and_with_the_others(tmp_path: Path, prober: Prober) -> None:
    changes: list[int] = []
    made = make(tmp_path, spec("network", "gpu"), spec("gpu", name="other"), changes=changes)
    assert states(made, "network", "gpu") == [(name, False, "it has not been tried yet") for name in ("network", "gpu")]
    await made.run()
    assert sorted(prober.asked) == [(), ("gpu",), ("network",), ("network", "gpu")]
    assert states(made, "network", "gpu") == [("network", False, OPEN.reason), ("gpu", True, HELD.reason)]
    state = made.describe("timer", ())
    assert (state.wrappers, [one.name for one in state.besides]) == (["bubblewrap", "landlock"], [*BESIDES])
    assert all(one.enforced for one in state.besides)
    assert changes == [1]


async def test_where_there_is_no_sandbox_nothing_is_tried(tmp_path: Path, prober: Prober) -> None:
    made = make(tmp_path, spec("network", sandbox=None))
    await made.run()
    assert prober.asked == []
    assert states(made, "network") == [("network", False, "no sandbox holds it: it has all of your rights")]
    assert (made.describe("timer", ()).wrappers, made.describe("timer", ()).besides) == ([], [])
    assert states(made, "gpu", name="nobody")[0][1] is False
    assert not (tmp_path / "utter").exists()


async def test_what_it_names_in_its_handshake_alone_it_does_not_get(tmp_path: Path, prober: Prober) -> None:
    made = make(tmp_path, spec("gpu"))
    await made.run()
    ((_, enforced, reason),) = states(made, "screen")
    assert (enforced, "in its handshake alone" in reason) == (True, True)
    assert states(made, "made.up") == [("made.up", False, "this version does not know it")]


async def test_findings_are_kept_for_the_same_and_made_anew_for_another(tmp_path: Path, prober: Prober) -> None:
    for _ in range(2):
        made = make(tmp_path, spec("gpu"))
        await made.run()
        assert states(made, "gpu") == [("gpu", True, HELD.reason)]
    assert prober.asked == [("gpu",), ()]
    path = tmp_path / "utter" / "sandbox.json"
    assert path.stat().st_mode & 0o777 == 0o600
    other = msgspec.structs.replace(SANDBOX, bwrap_version=(0, 9))
    await make(tmp_path, spec("gpu", sandbox=other)).run()
    assert prober.asked == [("gpu",), ()] * 2
    # One that needs more than is known asks for that alone.
    await make(tmp_path, spec("gpu", "screen", sandbox=other)).run()
    assert prober.asked[4:] == [("gpu", "screen"), ("screen",)]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"about": "x"}', '{"about": "x", "findings": {"": 1}}'])
async def test_a_file_that_says_nothing_is_made_anew(tmp_path: Path, prober: Prober, content: str) -> None:
    path = tmp_path / "utter" / "sandbox.json"
    path.parent.mkdir()
    path.write_text(content)
    made = make(tmp_path, spec("gpu"))
    await made.run()
    assert states(made, "gpu")[0][1] is True
    assert identity(SANDBOX, {"XDG_CACHE_HOME": str(tmp_path)}) in path.read_text()


async def test_what_could_not_be_tried_is_advisory_and_is_tried_again(tmp_path: Path, prober: Prober) -> None:
    prober.error = SpawnError("bwrap is gone")
    made = make(tmp_path, spec("gpu"))
    await made.run()
    assert states(made, "gpu") == [("gpu", False, "it could not be tried: bwrap is gone")]
    prober.error = None
    made = make(tmp_path, spec("gpu"))
    await made.run()
    assert states(made, "gpu")[0][1] is True


async def test_where_nothing_can_be_kept_it_is_found_out_each_time(
    tmp_path: Path, prober: Prober, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "utter").write_text("a file")
    made = make(tmp_path, spec("gpu"))
    await made.run()
    assert states(made, "gpu")[0][1] is True
    assert "cannot be kept" in caplog.text


async def test_what_is_configured_later_is_tried_then(tmp_path: Path, prober: Prober) -> None:
    made = make(tmp_path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.watch)
        await trio.testing.wait_all_tasks_blocked()
        assert prober.asked == []
        made.reconfigure([spec("gpu")])
        with trio.fail_after(30):
            while states(made, "gpu") != [("gpu", True, HELD.reason)]:
                await trio.lowlevel.checkpoint()
        asked = [*prober.asked]
        # What is known is not tried again, and what is gone is not told of.
        made.reconfigure([spec("gpu", name="other")])
        await trio.testing.wait_all_tasks_blocked()
        assert prober.asked == asked
        assert states(made, "gpu", name="other") == [("gpu", True, HELD.reason)]
        assert made.describe("timer", ("gpu",)).wrappers == []
        nursery.cancel_scope.cancel()
