"""What a plugin sees of the runner's environment."""

from __future__ import annotations

import os
import subprocess
import sys

from utter_runner.supervision.launch import INSTANCE_VARIABLE, SOCKET_VARIABLE, plugin_environment

RUNNERS = {
    "PATH": "/usr/bin",
    "HOME": "/home/me",
    "USER": "me",
    "LANG": "de_DE.UTF-8",
    "XDG_RUNTIME_DIR": "/run/user/1000",
    "SECRET_TOKEN": "x",
    "LD_PRELOAD": "/tmp/evil.so",  # noqa: S108 - a value, no file
    "PYTHONPATH": "/tmp",  # noqa: S108 - likewise
    "DBUS_SESSION_BUS_ADDRESS": "unix:path=/run/bus",
    INSTANCE_VARIABLE: "runner/1/abc",
}


def test_six_variables_and_no_other() -> None:
    assert plugin_environment(RUNNERS, "mark", {}) == {
        "PATH": "/usr/bin",
        "HOME": "/home/me",
        "USER": "me",
        "LANG": "de_DE.UTF-8",
        "XDG_RUNTIME_DIR": "/run/user/1000",
        INSTANCE_VARIABLE: "mark",
    }


def test_what_the_runner_lacks_is_not_made_up_save_what_every_program_needs() -> None:
    assert plugin_environment({}, "mark", {}) == {"PATH": os.defpath, "LANG": "C.UTF-8", INSTANCE_VARIABLE: "mark"}
    assert plugin_environment({"LANG": ""}, "m", {})["LANG"] == ""


def test_what_is_configured_is_added_and_stronger() -> None:
    made = plugin_environment(
        RUNNERS, "mark", {"PATH": "/opt/bin", "MINE": ""}, ("DBUS_SESSION_BUS_ADDRESS", "NOT_SET", "MINE", "PATH")
    )
    assert (made["PATH"], made["MINE"]) == ("/opt/bin", "")
    assert made["DBUS_SESSION_BUS_ADDRESS"] == "unix:path=/run/bus"
    assert "NOT_SET" not in made


def test_nothing_overrides_the_mark() -> None:
    made = plugin_environment(RUNNERS, "mark", {INSTANCE_VARIABLE: "mine"}, (INSTANCE_VARIABLE,))
    assert made[INSTANCE_VARIABLE] == "mark"


def test_the_socket_is_named_where_there_is_one_and_nothing_overrides_it() -> None:
    environ = {**RUNNERS, SOCKET_VARIABLE: "/run/runners"}
    assert SOCKET_VARIABLE not in plugin_environment(environ, "mark", {})
    made = plugin_environment(environ, "mark", {SOCKET_VARIABLE: "/mine"}, (SOCKET_VARIABLE,), "/run/p.sock")
    assert made[SOCKET_VARIABLE] == "/run/p.sock"


def test_no_slow_module_is_loaded_before_the_plugins_are_started() -> None:
    code = (
        "import sys, utter_runner.main\n"
        "print(sorted({'trio', 'asyncio', 'jsonschema_rs', 'ada_url', 'utter_runner.daemon'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_the_runners_own_environment_is_not_touched() -> None:
    environ, extra = dict(RUNNERS), {"A": "1"}
    plugin_environment(environ, "mark", extra)["B"] = "2"
    assert (environ, extra) == (RUNNERS, {"A": "1"})


def test_no_part_of_the_sandbox_is_loaded_that_nobody_wants() -> None:
    code = (
        "import sys, utter_runner.daemon\n"
        "print(sorted(name.rpartition('.')[2] for name in sys.modules if 'supervision.sandbox' in name))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "['assurance', 'findings', 'sandbox']"
