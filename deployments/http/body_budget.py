"""A bound on the memory that the bodies of unanswered requests take in a replica."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from deployments.errors import BusyError

#: The default limit: this share of the memory that the process may use, within bounds.
_SHARE_OF_MEMORY = 1 / 32
_LEAST_BYTES, _MOST_BYTES = 64 << 20, 512 << 20
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
NO_MEMORY = "this replica holds too many large requests; try again later"


def default_limit_bytes() -> int:
    """Return a limit that follows from the memory of this container or machine."""
    total_bytes = psutil.virtual_memory().total
    with suppress(OSError, ValueError):  # no container, or "max"
        total_bytes = min(total_bytes, int(_CGROUP_LIMIT.read_text()))
    return min(max(_LEAST_BYTES, int(_SHARE_OF_MEMORY * total_bytes)), _MOST_BYTES)


class Reservation:
    """The part of a budget that one request has taken."""

    def __init__(self, budget: "BodyBudget") -> None:
        self._budget = budget
        self.taken_bytes = 0

    def grow_to(self, total_bytes: int) -> None:
        """Take as much as makes `total_bytes` in all.

        Raises
        ------
        BusyError
            There is too little left.
        """
        more_bytes = total_bytes - self.taken_bytes
        if more_bytes > 0:
            if not self._budget.take(more_bytes):
                raise BusyError(NO_MEMORY)
            self.taken_bytes = total_bytes


class BodyBudget:
    """Bytes of bodies that are being read, or wait for their answer.

    Parameters
    ----------
    limit_bytes : int, optional
        At most so many, but for a single body, which is always let in; by default,
        `default_limit_bytes`.

    Attributes
    ----------
    limit_bytes : int
    used_bytes : int
    """

    __slots__ = ("limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int | None = None) -> None:
        self.limit_bytes = default_limit_bytes() if limit_bytes is None else limit_bytes
        self.used_bytes = 0

    def take(self, more_bytes: int) -> bool:
        """Reserve room for a body, or for more of one; return False if there is too little."""
        used_bytes = self.used_bytes + more_bytes
        if used_bytes > self.limit_bytes and self.used_bytes:
            return False
        self.used_bytes = used_bytes
        return True

    @contextmanager
    def reservation(self) -> Iterator[Reservation]:
        """Yield a reservation that ends with the context."""
        reservation = Reservation(self)
        try:
            yield reservation
        finally:
            self.release(reservation.taken_bytes)

    def release(self, fewer_bytes: int) -> None:
        """Free the room of a request that is answered or given up."""
        self.used_bytes -= fewer_bytes
