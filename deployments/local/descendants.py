"""The processes that this one has started, and theirs: keep hold of all, and end all."""

import ctypes
import os
import time
from collections.abc import Iterator, Set
from contextlib import contextmanager, suppress

import psutil

#: From ``<linux/prctl.h>``.
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
#: How long killed processes may take to end; one that waits for a device cannot be hurried.
_END_TIMEOUT_S = 10.0
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def adopted_orphans() -> Iterator[None]:
    """While the context lasts, be the parent of descendants whose own parents end.

    Ray's processes start others, and some outlive those that started them: HAProxy does when its
    manager is killed. Linux would make them children of the init process, where nobody ends them.

    Raises
    ------
    OSError
        The kernel refuses.
    """
    before = ctypes.c_int()
    _prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before))
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        _prctl(_PR_SET_CHILD_SUBREAPER, before.value)


def descendants() -> set[psutil.Process]:
    """Return the processes that descend from this one."""
    return set(psutil.Process().children(recursive=True))


def end_descendants(but: Set[psutil.Process] = frozenset()) -> set[psutil.Process]:
    """Kill the processes that descend from this one, but not `but`, and wait for their end.

    Return those that could not be ended.
    """
    deadline_s = time.monotonic() + _END_TIMEOUT_S
    # A process may start another one until it has ended itself, so look again.
    while found := {process for process in descendants() - but if not _ended(process)}:
        if time.monotonic() > deadline_s:
            return found
        for process in found:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(found, timeout=0.2)
    return set()


def _ended(process: psutil.Process) -> bool:
    """Return whether a process is gone, or a zombie; reap a zombie of ours."""
    with suppress(psutil.Error):
        if process.status() != psutil.STATUS_ZOMBIE:
            return False
        if process.ppid() == os.getpid():
            with suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)
    return True


def _prctl(option: int, argument: object) -> None:
    if _libc.prctl(option, argument, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
