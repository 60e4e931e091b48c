"""The batcher: a core of events and decisions, and the asyncio shell that runs it."""
