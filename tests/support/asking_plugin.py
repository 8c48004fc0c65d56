"""A plugin that asks the runner for things while it works on a request. Standard library only.

asking_plugin.py NAME SCRIPT

SCRIPT is a JSON object: `hello` and `describe` are merged into those answers; `on` maps a method to `{asks, result}`:
what it asks of the runner, one after the other, before it answers `result`, or `{answers}` where there is none. In an
ask, `"request": "$"` becomes the id of the request that it is working on. `hold` names methods that are never answered.
`$/cancel` is answered -32002, and every cancellation is kept: the method `cancellations` answers their ids, and `early`
what was answered to the asks of `start`, which are sent right after the hello.
"""

from __future__ import annotations

import json
import sys
from typing import Any

NAME = sys.argv[1]
SCRIPT = json.loads(sys.argv[2])
OUT = sys.stdout.buffer


def send(message: dict[str, Any]) -> None:
    body = json.dumps({"jsonrpc": "2.0", **message}).encode()
    OUT.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
    OUT.flush()


def read() -> dict[str, Any] | None:
    length = 0
    while True:
        line = sys.stdin.buffer.readline()
        if not line:
            return None
        if not line.strip():
            break
        length = int(line.split(b":")[1])
    message: dict[str, Any] = json.loads(sys.stdin.buffer.read(length))
    return message


class Job:
    def __init__(self, request: Any, script: dict[str, Any]) -> None:
        self.request = request
        self.asks = list(script.get("asks", ()))
        self.script = script
        self.answers: list[Any] = []


jobs: dict[int, Job] = {}
held: dict[Any, None] = {}
cancelled: list[Any] = []
early: list[Any] = []
last_id = 0


def ask(job: Job) -> None:
    global last_id  # noqa: PLW0603 - one counter of a small program
    if not job.asks:
        if job.request is not None:
            send({"id": job.request, "result": job.script.get("result", {"answers": job.answers})})
        return
    wanted = job.asks.pop(0)
    params = {name: job.request if value == "$" else value for name, value in wanted.get("params", {}).items()}
    last_id += 1
    jobs[last_id] = job
    send({"id": last_id, "method": wanted["method"], "params": params})


def on_request(request: Any, method: str) -> None:
    if method == "protocol.hello":
        hello = {
            "protocol": "1.0",
            "abi": 1,
            "plugin": {"name": NAME, "version": "1.0.0", "kind": SCRIPT.get("kind", "action")},
            **SCRIPT.get("hello", {}),
        }
        send({"id": request, "result": hello})
        if "start" in SCRIPT:
            job = Job(None, {"asks": SCRIPT["start"]})
            job.answers = early
            ask(job)
    elif method == "plugin.describe":
        send(
            {
                "id": request,
                "result": {"methods": list(SCRIPT.get("on", {})), "streams": [], **SCRIPT.get("describe", {})},
            }
        )
    elif method == "plugin.health":
        send({"id": request, "result": {}})
    elif method == "cancellations":
        send({"id": request, "result": {"ids": cancelled}})
    elif method == "early":
        send({"id": request, "result": {"answers": early}})
    elif method in SCRIPT.get("hold", ()):
        held[request] = None
    elif method in SCRIPT.get("on", {}):
        ask(Job(request, SCRIPT["on"][method]))
    else:
        send({"id": request, "error": {"code": -32601, "message": f"no method {method}"}})


def main() -> None:
    while (message := read()) is not None:
        method, number = message.get("method"), message.get("id")
        if method is None:
            job = jobs.pop(number, None)
            if job is not None:
                job.answers.append(message.get("error") or message.get("result"))
                ask(job)
        elif number is not None:
            on_request(number, method)
        elif method == "$/cancel":
            cancelled.append(message["params"]["id"])
            if message["params"]["id"] in held:
                del held[message["params"]["id"]]
                send({"id": message["params"]["id"], "error": {"code": -32002, "message": "cancelled"}})
        elif method in SCRIPT.get("die_on", ()):
            sys.exit(1)


if __name__ == "__main__":
    main()
