"""The batcher: a core that decides, and the asyncio batcher that runs it on a device."""
