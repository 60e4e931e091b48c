"""The memory and time of a replica's process."""

import time

import psutil

_STARTED_S = time.monotonic()


def process_report() -> dict[str, float]:
    """Return the resident memory of this process, in bytes, and for how long it serves, in s.

    Ray keeps processes waiting, so the time counts from the import of Sojourn.
    """
    memory_bytes = psutil.Process().memory_info().rss
    return {"memory_bytes": memory_bytes, "up_s": time.monotonic() - _STARTED_S}
