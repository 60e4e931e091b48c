"""The deputy: a fork of the supervisor that takes its place if it is killed.

HAProxy must not run without anybody who starts it again when it dies, and ends it when Ray has
ended. So the supervisor forks a second process, which shares its listening sockets, sleeps, and
costs no more than its few own pages of memory. A pipe tells it which process HAProxy is. The pipe
ends only if the supervisor is killed: one that ends by itself ends its deputy first.
"""

import os
import signal
from contextlib import suppress

from deployments.haproxy.processes import ended

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class Deputy:
    """The deputy, as its supervisor sees it."""

    def __init__(self) -> None:
        self._pid = 0
        self._pidfd = self._pipe = -1

    @property
    def alive(self) -> bool:
        """Whether there is one."""
        return self._pid != 0 and not ended(self._pidfd)

    def fork(self, haproxy: int = 0) -> int | None:
        """Fork, and return twice: in this process at once; in the other if this one is killed.

        Parameters
        ----------
        haproxy : int
            The process id of HAProxy; 0 if it has not been started.

        Returns
        -------
        int or None
            None in this process; in the deputy, the process id of the last HAProxy.
        """
        self.end()
        reader, writer = os.pipe()
        # Until it ignores signals, the new process would take them for its own.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        pid = os.fork()
        if pid:
            self._pid, self._pidfd, self._pipe = pid, os.pidfd_open(pid), writer
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(reader)
            return None
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(writer)
        with os.fdopen(reader) as lines:
            for line in lines:
                haproxy = int(line)
        return haproxy

    def tell(self, haproxy: int) -> None:
        """Tell which process HAProxy is now."""
        if self._pid:
            with suppress(BrokenPipeError):  # the next deputy is told when it is forked
                os.write(self._pipe, b"%d\n" % haproxy)

    def end(self) -> None:
        """End the deputy, if there is one. A signal handler may call this as well."""
        pid, self._pid = self._pid, 0
        if pid:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(self._pidfd)
            os.close(self._pipe)
