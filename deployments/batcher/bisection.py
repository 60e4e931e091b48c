"""Slices of failed batches, until it is known which of them is to blame.

What the search costs, beside halving the failed batch until all but the culprit are answered: on a
device of 50 ms + 0.5 ms a row, batches of 32, all full, 1% of the rows poison, 93% of the rows that
it answers without poison instead of 50% where a failure takes no time, 40% instead of 28% where it
takes as long as an answer.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from deployments.batcher.requests import Request, Slice


class _Group(NamedTuple):
    """Slices to be tested; `guilty` where one of them is believed to be to blame."""

    slices: Sequence[Slice]
    guilty: bool


_NOBODY = _Group((), guilty=False)


class BatchBisection:
    """Groups of suspects, and binary splitting of the first of them.

    Attributes
    ----------
    rows : int
        Rows that wait here, without those that are being tested.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._groups: deque[_Group] = deque()
        # The rest of the group that is being tested: guilty if the test passes.
        self._untested = _NOBODY

    def __bool__(self) -> bool:
        return bool(self._groups)

    def add(self, slices: Sequence[Slice], *, guilty: bool, first: bool = False) -> None:
        """Have `slices` tested, after the other groups or before them."""
        slices = [part for part in slices if not part.request.cancelled]
        self._count(slices, +1)
        if slices:
            group = _Group(slices, guilty)
            self._groups.appendleft(group) if first else self._groups.append(group)

    def forget(self, request: Request) -> None:
        """Count the rows of a cancelled request no more."""
        self.rows -= request.rows_suspected
        request.rows_suspected = 0

    def requests(self) -> list[Request]:
        """Give those who wait."""
        groups = (self._untested, *self._groups)
        return [part.request for group in groups for part in group.slices]

    def take(self, largest: int) -> tuple[list[Slice], bool]:
        """Take who is tested next: half of a guilty group, or a whole one.

        Parameters
        ----------
        largest : int
            Rows that a batch may have.

        Returns
        -------
        tested : list of Slice
            Empty where all of the group have left.
        alone : bool
            Whether it is the last suspect, whom a test alone convicts.
        """
        slices, guilty = self._groups.popleft()
        waiting = [part for part in slices if not part.request.cancelled]
        # Where somebody left, it may have been the culprit.
        guilty = guilty and len(waiting) == len(slices)
        count = len(waiting) // 2 or 1 if guilty else len(waiting)
        while count > 1 and sum(part.rows for part in waiting[:count]) > largest:
            count //= 2
        tested = waiting[:count]
        self._untested = _Group(waiting[count:], guilty)
        self._count(tested, -1)
        return tested, guilty and len(waiting) == 1

    def passed(self) -> None:
        """Take note that the test passed: the culprit is among the others."""
        if self._untested.slices:
            self._groups.appendleft(self._untested)
        self._untested = _NOBODY

    def doubt(self) -> None:
        """Take note that somebody was not tested after all, and may have been the culprit."""
        self._untested = self._untested._replace(guilty=False)

    def failed(self) -> list[Slice]:
        """Take note that the test failed: give back the others, who are suspected no more."""
        untested = [part for part in self._untested.slices if not part.request.cancelled]
        self._untested = _NOBODY
        self._count(untested, -1)
        return untested

    def crowd_out(self, room: int) -> list[Request]:
        """Give up the oldest groups, but for the last, until at most `room` rows wait."""
        given_up = []
        while self.rows > room and len(self._groups) > 1:
            for part in self._groups.popleft().slices:
                if not part.request.cancelled:
                    given_up.append(part.request)
                    self._count([part], -1)
        return given_up

    def _count(self, slices: Sequence[Slice], sign: int) -> None:
        for part in slices:
            self.rows += sign * part.rows
            part.request.rows_suspected += sign * part.rows
