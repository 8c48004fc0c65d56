"""What a plugin in Python imports, and (in `utter_sdk.client`) what a program that talks to the runner imports.

Rules here: importing this package starts nothing, touches no file descriptor and stays cheap, because a plugin's
start-up time is the runner's; `testing` and `client` are imported by those who want them.

Example:
    from utter_sdk import ActionResult, Plugin

    plugin = Plugin("lamp", version="0.1.0", kind="action", provides=["action.invoke@1"])

    @plugin.action("lamp_on", side_effect="local", schema={"type": "object"})
    def lamp_on(args: dict) -> ActionResult:
        return ActionResult(ok=True, detail="The lamp is on.")

    if __name__ == "__main__":
        plugin.run()
"""

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.methods import ActionResult
from utter_sdk.plugin import Cancelled, Plugin
from utter_sdk.streams import AsyncStream, Stream, StreamClosed

__all__ = [
    "ActionResult",
    "AsyncStream",
    "Cancelled",
    "ErrorCode",
    "Plugin",
    "RpcError",
    "Stream",
    "StreamClosed",
]
