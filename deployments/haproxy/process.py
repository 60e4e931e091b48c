"""Processes by their file descriptors, which no other process can ever take."""

import os
import select
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from deployments.haproxy.admin_socket import process_at


def open_parent_of(pid: int) -> int | None:
    """Return a descriptor of a process's parent; None if either has ended."""
    with suppress(OSError, ValueError, IndexError):
        return os.pidfd_open(int(_status(pid)[1]))
    return None


def _status(pid: int) -> list[str]:
    """Return the state, the parent and more of a process, as the kernel writes them."""
    # The name, in parentheses, may contain anything.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def ended(pidfd: int, timeout_s: float | None = 0.0) -> bool:
    """Wait for a process to end, by default not at all; return whether it did."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else 1e3 * timeout_s))


class Haproxy:
    """A HAProxy, or a supervisor in charge of one."""

    def __init__(
        self, pid: int, admin_socket: Path, child: "subprocess.Popen[bytes] | None" = None
    ) -> None:
        self.pid, self.admin_socket = pid, admin_socket
        self._pidfd = os.pidfd_open(pid)
        self._child = child

    def fileno(self) -> int:
        return self._pidfd

    @property
    def wants_cpu(self) -> bool:
        """Whether the process computes, or waits for a CPU."""
        with suppress(OSError, IndexError):
            return _status(self.pid)[0] == "R"
        return False

    def signal(self, number: int) -> None:
        """Send a signal; nothing happens if the process has ended."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def wait_ready(self, timeout_s: float) -> bool:
        """Wait until it answers at its admin socket; return False if it ends or does not."""
        until_s = time.monotonic() + timeout_s
        while time.monotonic() < until_s:
            if ended(self._pidfd, 0.01):
                return False
            if process_at(self.admin_socket) is not None:
                return True
        return False

    def end(self, timeout_s: float) -> int:
        """Kill the process unless it has ended; return its status, 0 if it is not our child."""
        if not ended(self._pidfd):
            self.signal(signal.SIGKILL)
            ended(self._pidfd, timeout_s)
        os.close(self._pidfd)
        return self._child.wait() if self._child is not None else 0
