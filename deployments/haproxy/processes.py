"""Processes by their file descriptors, which no other process can ever take."""

import os
import select
from contextlib import suppress
from pathlib import Path


def open_parent_of(pid: int) -> int | None:
    """Return a descriptor of a process's parent; None if either has ended."""
    with suppress(OSError, ValueError, IndexError):
        return os.pidfd_open(int(_status(pid)[1]))
    return None


def wants_cpu(pid: int) -> bool:
    """Return whether a process computes, or waits for a CPU."""
    with suppress(OSError, IndexError):
        return _status(pid)[0] == "R"
    return False


def _status(pid: int) -> list[str]:
    """Return what the kernel tells of a process: its state, its parent and more."""
    # The name, in parentheses, may contain anything.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def ended(pidfd: int, timeout_s: float = 0.0) -> bool:
    """Wait for a process to end; return whether it did."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(1e3 * timeout_s))
