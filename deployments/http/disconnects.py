"""Detect clients that disconnect, without a task per request."""

import asyncio
from typing import Any

from starlette.types import Receive

#: A request gets a listener one to two periods after it was added.
CHECK_PERIOD_S = 0.005

_Requests = dict[asyncio.Task[Any], Receive]


class DisconnectWatch:
    """Cancels the tasks of requests whose clients disconnect.

    ASGI reports a disconnect only to a pending `receive()`, so something must wait in it beside
    each request. A task for that costs about as much as the rest of a quick request. The watch
    therefore starts one only for a request that is older than a full period; a request that is
    answered sooner costs two dictionary operations.
    """

    def __init__(self) -> None:
        self._added_this_period: _Requests = {}
        self._added_last_period: _Requests = {}
        self._listeners: dict[asyncio.Task[Any], asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, task: asyncio.Task[Any], receive: Receive) -> None:
        """Cancel `task` when `receive` reports a disconnect, until the task is removed."""
        self._added_this_period[task] = receive
        if self._timer is None:
            self._timer = task.get_loop().call_later(CHECK_PERIOD_S, self._end_period)

    def remove(self, task: asyncio.Task[Any]) -> None:
        """Stop watching the client of `task`."""
        if (
            self._added_this_period.pop(task, None) is None
            and self._added_last_period.pop(task, None) is None
        ):
            self._listeners.pop(task).cancel()

    def _end_period(self) -> None:
        """Start a listener for each request added before this period."""
        for task, receive in self._added_last_period.items():
            self._listeners[task] = task.get_loop().create_task(
                _cancel_on_disconnect(receive, task)
            )
        self._added_last_period, self._added_this_period = self._added_this_period, {}
        self._timer = None
        if self._added_last_period:
            self._timer = asyncio.get_running_loop().call_later(CHECK_PERIOD_S, self._end_period)


async def _cancel_on_disconnect(receive: Receive, task: asyncio.Task[Any]) -> None:
    if (await receive())["type"] == "http.disconnect":
        task.cancel()
