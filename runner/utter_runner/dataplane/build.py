"""Builds the data plane from the configuration.

Rules here: only wiring; nothing is opened or written before it runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from utter_runner.dataplane.blobfiles import BlobFiles
from utter_runner.dataplane.books import Quotas
from utter_runner.dataplane.handles import HandleStore
from utter_runner.dataplane.service import DataPlane
from utter_runner.dataplane.wakers import RingWakers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from utter_runner.config import RunnerConfig
    from utter_runner.dataplane.ring import RingWriter
    from utter_runner.rpc.deadlines import Deadlines
    from utter_runner.rpc.reactor import Reactor


def handle_root(config: RunnerConfig, environ: Mapping[str, str], socket_path: Path) -> Path:
    """Return where blobs are kept: as configured, else $XDG_RUNTIME_DIR/utter/handles, else beside the socket."""
    if config.handle_root is not None:
        return Path(config.handle_root)
    runtime = Path(environ.get("XDG_RUNTIME_DIR", ""))
    return runtime / "utter" / "handles" if runtime.is_absolute() else socket_path.parent / "handles"


def quotas_of(config: RunnerConfig) -> Quotas:
    """Return the bounds of the handle store."""
    return Quotas(
        scope_bytes=config.handle_scope_bytes,
        scope_count=config.handle_scope_count,
        total_bytes=config.handle_total_bytes,
        ttl=config.handle_ttl,
    )


def build_data_plane(
    config: RunnerConfig,
    root: Path,
    *,
    ring: RingWriter,
    reactor: Reactor,
    deadlines: Deadlines,
    plugin_known: Callable[[str], object],
    on_broken: Callable[[str], None],
) -> DataPlane:
    """Return the data plane.

    Args:
        config: the quotas and the life of handles.
        root: where blobs are kept.
        ring: the microphone's audio.
        reactor: tells when a reader of the ring is gone.
        deadlines: the heap for the sweep.
        plugin_known: raises RpcError for an id that is no plugin's.
        on_broken: told in a sentence why there are no handles.
    """
    store = HandleStore(BlobFiles(root), quotas=quotas_of(config), deadlines=deadlines, on_broken=on_broken)
    return DataPlane(store, ring=ring, wakers=RingWakers(ring, reactor), plugin_known=plugin_known)
