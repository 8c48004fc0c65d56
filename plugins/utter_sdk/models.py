"""Where a plugin's models are (PROTOCOL.md, "Models").

Rules here: the runner names the directory in the environment; nothing is fetched, and what is missing is an error with
the command that fetches it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from utter_protocol.errors import ErrorCode, RpcError
from utter_protocol.models import MODELS_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping


def model_path(plugin: str, name: str, environ: Mapping[str, str]) -> Path:
    """The file, or the directory, that a plugin has as its model `name`.

    Raises:
        RpcError: -32000, it has not been fetched, or the runner knows of no models of this plugin.
    """
    directory = environ.get(MODELS_VARIABLE, "")
    if not directory:
        raise RpcError(
            ErrorCode.PLUGIN_FAILED,
            f"The runner has no models for {plugin}: neither its manifest nor its [[plugin]] table has the key models.",
        )
    path = Path(directory, name)
    if not path.exists():
        raise RpcError(
            ErrorCode.PLUGIN_FAILED,
            f"The model {name} has not been fetched: utter models pull {plugin}",
            {"model": name},
        )
    return path
