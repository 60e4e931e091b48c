"""Noticing that clients have left, without a task for each request."""

import asyncio
from typing import Any

from starlette.types import Receive

#: How often requests are looked at; who leaves is noticed after two such periods at most.
PERIOD_S = 0.005

_Waiting = dict[asyncio.Task[Any], Receive]


class DisconnectWatch:
    """Cancels the tasks of requests whose clients leave.

    ASGI tells it only to who waits for it, so somebody has to wait beside each request. A task for
    that costs about as much as the rest of a quick request; one that is answered within a period
    goes without, and costs an entry in a dict.
    """

    def __init__(self) -> None:
        self._new: _Waiting = {}
        self._seen: _Waiting = {}
        self._listeners: dict[asyncio.Task[Any], asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, task: asyncio.Task[Any], receive: Receive) -> None:
        """Cancel `task` if `receive` says that its client has left, until it is removed."""
        self._new[task] = receive
        if self._timer is None:
            self._timer = task.get_loop().call_later(PERIOD_S, self._look)

    def remove(self, task: asyncio.Task[Any]) -> None:
        """Leave `task` alone."""
        if self._new.pop(task, None) is None and self._seen.pop(task, None) is None:
            self._listeners.pop(task).cancel()

    def _look(self) -> None:
        for task, receive in self._seen.items():
            self._listeners[task] = task.get_loop().create_task(_listen(receive, task))
        self._seen, self._new = self._new, {}
        self._timer = None
        if self._seen:
            self._timer = asyncio.get_running_loop().call_later(PERIOD_S, self._look)


async def _listen(receive: Receive, task: asyncio.Task[Any]) -> None:
    if (await receive())["type"] == "http.disconnect":
        task.cancel()
