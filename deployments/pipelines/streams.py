"""Streams of many values through a pipeline, in order and with bounded memory."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable
from typing import Any

from deployments.errors import DeviceError
from deployments.pipelines.core.items import Flow


async def stream_results(
    values: Iterable[Any] | AsyncIterable[Any],
    submit: Callable[[Any], Awaitable[Flow]],
    give_up: Callable[[Flow], None],
    in_flight: int,
) -> AsyncGenerator[Any, None]:
    """Yield the results of values, or their errors, in order.

    `submit` sends a value once there is room. At most `in_flight` are read and not yet yielded.
    """
    room = asyncio.Semaphore(in_flight)
    sent: asyncio.Queue[Flow | Exception | None] = asyncio.Queue()

    async def send_all() -> None:
        try:
            await room.acquire()
            async for value in _each(values):
                sent.put_nowait(await _sent(value, submit))
                await room.acquire()
        finally:
            sent.put_nowait(None)

    sender = asyncio.create_task(send_all())
    # Retrieved here, because a reader that stops early does not do so.
    sender.add_done_callback(lambda task: task.cancelled() or task.exception())
    try:
        while (result := await sent.get()) is not None:
            if isinstance(result, Flow):
                try:
                    result = await result.content
                except Exception as error:
                    result = error
            yield result
            room.release()
        await sender
    finally:
        sender.cancel()
        while not sent.empty():
            if isinstance(flow := sent.get_nowait(), Flow):
                give_up(flow)


async def _each(values: Iterable[Any] | AsyncIterable[Any]) -> AsyncGenerator[Any, None]:
    if isinstance(values, AsyncIterable):
        async for value in values:
            yield value
    else:
        for value in values:
            yield value


async def _sent(value: Any, submit: Callable[[Any], Awaitable[Flow]]) -> Flow | Exception:
    """Send a value; return the error of a refused one, and an exception in place of a value."""
    if isinstance(value, Exception):
        return value
    try:
        return await submit(value)
    except DeviceError as error:
        return error
