"""One HAProxy process: started, watched and signaled."""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from deployments.haproxy.admin_relay import AdminError, ask
from deployments.haproxy.processes import ended


class Worker:
    """A process that a supervisor answers for: a HAProxy, or another supervisor.

    Parameters
    ----------
    pid : int
    admin_socket : Path
        The admin socket of the HAProxy.

    Attributes
    ----------
    pid : int
    admin_socket : Path
    """

    def __init__(self, pid: int, admin_socket: Path) -> None:
        self.pid = pid
        self.admin_socket = admin_socket
        self._pidfd = os.pidfd_open(pid)

    def fileno(self) -> int:
        """Return the file descriptor that becomes readable when the process ends."""
        return self._pidfd

    def signal(self, number: int) -> None:
        """Send a signal; nothing happens if the process has ended."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def ended(self, timeout_s: float = 0.0) -> bool:
        """Wait for the process to end; return whether it did."""
        return ended(self._pidfd, timeout_s)

    def responds(self) -> bool:
        """Return whether the HAProxy answers at its admin socket."""
        try:
            return bool(ask(self.admin_socket, b"show info"))
        except AdminError:
            return False

    def close(self) -> int:
        """Return the exit status of a process that has ended; 0 if it is not our child."""
        os.close(self._pidfd)
        return 0


class Child(Worker):
    """A HAProxy that this process starts.

    Parameters
    ----------
    command : sequence of str
    admin_socket : Path
        Where `command` makes it open its admin socket.
    descriptors : sequence of int
        File descriptors that it inherits.
    """

    def __init__(
        self, command: Sequence[str], admin_socket: Path, descriptors: Sequence[int]
    ) -> None:
        self._process = subprocess.Popen(command, pass_fds=descriptors)
        super().__init__(self._process.pid, admin_socket)

    def wait_ready(self, timeout_s: float) -> bool:
        """Wait until it answers at its admin socket; return False if it ends or does not."""
        until_s = time.monotonic() + timeout_s
        while time.monotonic() < until_s:
            if self.ended(0.01):
                return False
            if self.responds():
                return True
        return False

    def close(self) -> int:
        """Return the exit status; negative for a signal."""
        super().close()
        return self._process.wait()
