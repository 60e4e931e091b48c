"""Streams of many values through a pipeline, in order and with bounded memory."""

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

from deployments.errors import DeviceError
from deployments.pipelines.core.items import Flow

# Marks the end of the values.
_END = object()


class RoomQueue:
    """Streams that wait for room in a pipeline; `free` returns the room."""

    def __init__(self, free: Callable[[], int]) -> None:
        self._free = free
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        """Wait until there is room."""
        while self._free() <= 0:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                self.wake()  # it may have been this stream's turn, which is passed on
                raise

    def wake(self) -> None:
        """Resume as many streams as there is room for."""
        free = self._free()
        while self._waiting and free > 0:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                free -= 1


async def stream_results(
    values: Iterable[Any] | AsyncIterable[Any],
    submit: Callable[[Any], Awaitable[Flow]],
    give_up: Callable[[Flow], None],
    in_flight: int,
    raise_errors: bool,
) -> AsyncIterator[Any]:
    """Yield the results of values in order.

    `submit` sends a value once there is room, and `give_up` cancels a request that has not ended.
    At most `in_flight` values are read and not yet yielded. An error is yielded in its place, or
    raised.
    """
    window: deque[Flow] = deque()
    live = aiter(values) if isinstance(values, AsyncIterable) else None
    ready = iter(()) if isinstance(values, AsyncIterable) else iter(values)
    coming: asyncio.Future[Any] | None = None
    try:
        while True:
            while len(window) >= in_flight or (window and window[0].content.done()):
                yield await _outcome(window.popleft(), raise_errors)
            if live is None:
                value = next(ready, _END)
            else:
                coming = asyncio.ensure_future(anext(live, _END))
                while not coming.done():
                    # It may take long, so results that are ready do not wait for the next value.
                    first = [window[0].content] if window else []
                    await asyncio.wait([coming, *first], return_when=asyncio.FIRST_COMPLETED)
                    while window and window[0].content.done():
                        yield await _outcome(window.popleft(), raise_errors)
                value = coming.result()
            if value is _END:
                break
            window.append(await _sent(value, submit))
        while window:
            yield await _outcome(window.popleft(), raise_errors)
    finally:
        if coming is not None:
            coming.cancel()
        for flow in window:
            give_up(flow)


async def _sent(value: Any, submit: Callable[[Any], Awaitable[Flow]]) -> Flow:
    """Send a value; refused values and exceptions in place of values fail at once."""
    if isinstance(value, Exception):
        return _failed(value)
    try:
        return await submit(value)
    except DeviceError as error:
        return _failed(error)


def set_exception(flow: Flow, error: Exception) -> None:
    """Fail a request's future, unless it is done."""
    if not flow.content.done():
        flow.content.set_exception(error)
        flow.content.exception()  # retrieved here, because nobody else may do so


def _failed(error: Exception) -> Flow:
    """Return a request that failed before it was sent."""
    loop = asyncio.get_running_loop()
    flow = Flow(-1, loop.time(), content=loop.create_future())
    flow.done = True
    set_exception(flow, error)
    return flow


async def _outcome(flow: Flow, raise_errors: bool) -> Any:
    try:
        return await flow.content
    except Exception as error:
        if raise_errors:
            raise
        return error
