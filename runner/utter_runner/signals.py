"""The signals that the daemon obeys: SIGTERM and SIGINT to stop, SIGHUP to read its configuration again (signal(7)).

Rules here: none is lost, whenever it comes, and none of them ends the process by itself.
"""

from __future__ import annotations

import logging
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

logger = logging.getLogger("utter_runner")

_STOP = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stop_signals() -> Iterator[Any]:
    """Receive SIGTERM and SIGINT. None is lost on the way in; on the way out a second one must not disturb."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP)
    for number in _STOP:
        # What came in too late is delivered again to this, the handler that is restored.
        signal.signal(number, lambda _number, _frame: None)
    with trio.open_signal_receiver(*_STOP) as signals:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP)
        yield signals


async def cancel_on_stop(signals: Any, scope: trio.CancelScope) -> None:
    """Cancel `scope` at each of the signals that `stop_signals` receives."""
    async for number in signals:
        logger.info("%s: stopping", signal.Signals(number).name)
        scope.cancel()


async def reload_on_hang_up(
    reload: Callable[[], Awaitable[object]], hung_up: Callable[[], bool], task_status: trio.TaskStatus[None]
) -> None:
    """Await `reload` at each SIGHUP; what it raises is logged.

    Args:
        reload: reads the configuration again.
        hung_up: whether SIGHUP has come before there was a loop.
        task_status: told when nothing is lost any more.
    """
    with trio.open_signal_receiver(signal.SIGHUP) as hang_ups:
        task_status.started()
        if hung_up():
            await _reload_unasked(reload)
        async for _ in hang_ups:
            await _reload_unasked(reload)


async def _reload_unasked(reload: Callable[[], Awaitable[object]]) -> None:
    try:
        await reload()
    except Exception:
        logger.exception("the configuration could not be reloaded")
