"""Processes by their file descriptors, which no other process can ever take."""

import os
import select
from contextlib import suppress
from pathlib import Path


def open_parent_of(pid: int) -> int | None:
    """Return a descriptor of a process's parent; None if either has ended."""
    with suppress(OSError, ValueError, IndexError):
        # The name, in parentheses, may contain anything.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return os.pidfd_open(int(fields[1]))
    return None


def ended(pidfd: int, timeout_s: float = 0.0) -> bool:
    """Wait for a process to end; return whether it did."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(1e3 * timeout_s))
