"""The memory and time of a replica's process."""

import time

import psutil


def process_report() -> dict[str, float]:
    """Return the resident memory of this process, in bytes, and for how long it has run, in s."""
    process = psutil.Process()
    memory_bytes, up_s = process.memory_info().rss, time.time() - process.create_time()
    return {"memory_bytes": memory_bytes, "up_s": up_s}
