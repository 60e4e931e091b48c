"""One HAProxy process: started, watched and signalled."""

import ctypes
import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from deployments.haproxy.admin_relay import AdminError, ask

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class Worker:
    """A process that a supervisor answers for: its own HAProxy, or another supervisor.

    Parameters
    ----------
    pid : int
    admin_socket : Path
        The admin socket of the HAProxy.

    Attributes
    ----------
    admin_socket : Path
    """

    def __init__(self, pid: int, admin_socket: Path) -> None:
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
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(1e3 * timeout_s))

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
    """A HAProxy that this process starts, and that ends with it.

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
        parent = os.getpid()

        def end_with_parent() -> None:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGKILL)

        # One thread only, so code may run between fork and exec.
        self._process = subprocess.Popen(command, pass_fds=descriptors, preexec_fn=end_with_parent)
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
