"""Find the request that made a batch fail, by group testing with binary splitting.

Tests share batches with requests from the queue. The gain over rerunning ever smaller halves of the
failed batch alone, on a device of 50 ms + 0.5 ms per row with full batches of 32, 1% of whose rows
are poison: the device answers 93% instead of 50% of the rows that it answers without poison if a
failure takes no time, and 40% instead of 28% if a failure takes as long as an answer.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from policy.batcher.requests import Request, Slice


class _Group(NamedTuple):
    """Suspected slices, and whether one of them is believed to have failed its batch."""

    slices: Sequence[Slice]
    has_culprit: bool


_EMPTY_GROUP = _Group((), has_culprit=False)


class BatchBisection:
    """A queue of suspected groups, the first of which is searched by halving.

    The caller takes a test with `next_test`, runs it, and reports the outcome with `test_passed`
    or `test_failed` before it takes the next one.
    """

    def __init__(self) -> None:
        #: Suspected rows that wait here, without those under test.
        self.rows = 0
        self._groups: deque[_Group] = deque()
        # The rest of the group under test: it has the culprit if the test passes.
        self._untested = _EMPTY_GROUP

    def __bool__(self) -> bool:
        return bool(self._groups)

    def add(self, slices: Sequence[Slice], *, has_culprit: bool, first: bool = False) -> None:
        """Queue a group of suspects, last or first; skip cancelled requests."""
        slices = [part for part in slices if not part.request.cancelled]
        self._count(slices, +1)
        if slices:
            group = _Group(slices, has_culprit)
            self._groups.appendleft(group) if first else self._groups.append(group)

    def discard(self, request: Request) -> None:
        self.rows -= request.rows_suspected
        request.rows_suspected = 0

    def requests(self) -> list[Request]:
        groups = (self._untested, *self._groups)
        return [part.request for group in groups for part in group.slices]

    def next_test(self, max_rows: int) -> tuple[list[Slice], bool]:
        """Return the slices to test next: half of a group with a culprit, or a whole group.

        None is left if all were cancelled. Also return whether the slice is the only suspect left,
        so that failing alone convicts it.
        """
        slices, has_culprit = self._groups.popleft()
        waiting = [part for part in slices if not part.request.cancelled]
        # A cancelled request may have been the culprit.
        has_culprit = has_culprit and len(waiting) == len(slices)
        count = len(waiting) // 2 or 1 if has_culprit else len(waiting)
        while count > 1 and sum(part.rows for part in waiting[:count]) > max_rows:
            count //= 2
        under_test = waiting[:count]
        self._untested = _Group(waiting[count:], has_culprit)
        self._count(under_test, -1)
        return under_test, has_culprit and len(waiting) == 1

    def test_passed(self) -> None:
        """Record that the test passed: the culprit is among the untested suspects."""
        if self._untested.slices:
            self._groups.appendleft(self._untested)
        self._untested = _EMPTY_GROUP

    def test_failed(self) -> list[Slice]:
        """Record that the test failed; return the untested suspects, which are now cleared."""
        cleared = [part for part in self._untested.slices if not part.request.cancelled]
        self._untested = _EMPTY_GROUP
        self._count(cleared, -1)
        return cleared

    def test_incomplete(self) -> None:
        """Record that a slice dropped out of the test: it may have been the culprit."""
        self._untested = self._untested._replace(has_culprit=False)

    def release(self, cleared: Callable[[Request], bool]) -> list[Slice]:
        """Remove the groups whose requests are all cleared; return their slices, in order."""
        groups, self._groups = self._groups, deque()
        released: list[Slice] = []
        for group in groups:
            if all(cleared(part.request) for part in group.slices):
                released += [part for part in group.slices if not part.request.cancelled]
            else:
                self._groups.append(group)
        self._count(released, -1)
        return released

    def crowd_out(self, max_rows: int) -> list[Request]:
        """Abandon the oldest groups, but never the last one, until at most `max_rows` rows wait."""
        given_up = []
        while self.rows > max_rows and len(self._groups) > 1:
            for part in self._groups.popleft().slices:
                if not part.request.cancelled:
                    given_up.append(part.request)
                    self._count([part], -1)
        return given_up

    def _count(self, slices: Sequence[Slice], sign: int) -> None:
        for part in slices:
            self.rows += sign * part.rows
            part.request.rows_suspected += sign * part.rows
