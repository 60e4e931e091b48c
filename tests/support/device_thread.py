"""Wait for a batcher's device thread without sleeping."""

import asyncio
import threading

from deployments.batcher.asyncio_batcher import Batcher


async def end_device_thread(batcher: Batcher) -> None:
    """End the device thread after its batch, and let the event loop take the outcome."""
    batcher.close()
    for thread in threading.enumerate():
        if thread.name == "sojourn-device":
            await asyncio.to_thread(thread.join, 10)
    await asyncio.sleep(0)
