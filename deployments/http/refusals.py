"""Pace the refusals of a busy front, so that clients that try again at once cannot keep it busy.

A refusal costs the event loop a part of what an answer costs. Clients that are refused and
try again in a closed loop turn each one into the next: a saturated loop would spend its time on
refusing, and what it does admit would be read too late. So refusals may take a share of the loop's
time, and as much again as the loop is idle; beyond that, they leave a few milliseconds later. What
they take themselves is not idle, so with a share w of the loop's time for other work they take
(1 + SHARE - w) / 2 at most. A loop that is not busy refuses at once: HAProxy tries a refused
request at several replicas, and would lose the hold at each.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from deployments.batcher.front_meter import FrontMeter

#: Share of the loop's time that the requests of refused clients may take though it is never idle.
SHARE = 0.1
#: The longest that a refusal is held back: another replica may still answer the request in time.
MAX_HOLD_S = 0.05
#: The longest for requests that no replica can answer in time any more.
MAX_HOLD_TOO_LATE_S = 0.5
#: Time for refusals that an idle loop saves up.
_MAX_SAVED_S = 0.002
_PERIOD_S = 0.002


class Connection(Protocol):
    """A connection, to which an answer is written."""

    def write(self, start: bytes, end: bytes) -> None:
        """Write an answer, given before and after the request id."""


_Answer = tuple[float, Connection, bytes, bytes]


class RefusalPacer:
    """Writes the answers to requests that were refused as they were read.

    None leaves before the loop's iteration ends. Otherwise its client could send the next request
    while the poll goes on, which returns only when nothing more is to be read, and no batch would
    start meanwhile.

    Parameters
    ----------
    loop : AbstractEventLoop
    meter : FrontMeter
        Knows what a request costs the loop.
    clock : callable
        Time in seconds.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        meter: FrontMeter,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loop, self._meter, self._clock = loop, meter, clock
        #: By the time when they must leave; first those for which another replica may have time.
        self._held: tuple[deque[_Answer], deque[_Answer]] = (deque(), deque())
        self._scheduled = False
        self._saved_s = _MAX_SAVED_S
        self._looked_s, self._worked_s = clock(), meter.worked_s

    def add(
        self, connection: Connection, start: bytes, end: bytes, *, too_late: bool = False
    ) -> None:
        """Have an answer written.

        Parameters
        ----------
        connection : Connection
        start, end : bytes
            The answer before and after the request id.
        too_late : bool
            Whether no other replica can answer the request in time either.
        """
        hold_s = MAX_HOLD_TOO_LATE_S if too_late else MAX_HOLD_S
        self._held[too_late].append((self._clock() + hold_s, connection, start, end))
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._release)

    def _release(self) -> None:
        now_s = self._clock()
        elapsed_s, worked_s = now_s - self._looked_s, self._meter.worked_s - self._worked_s
        self._saved_s += SHARE * elapsed_s + max(0.0, elapsed_s - worked_s)
        self._saved_s = min(self._saved_s, _MAX_SAVED_S)
        self._looked_s, self._worked_s = now_s, self._meter.worked_s
        cost_s = self._meter.request_s
        for held, too_late in zip(self._held, (False, True), strict=True):
            while held and (self._saved_s > 0 or now_s >= held[0][0]):
                leaves_at_s, connection, start, end = held.popleft()
                self._saved_s -= cost_s
                if too_late:
                    self._meter.answer_held(now_s - leaves_at_s + MAX_HOLD_TOO_LATE_S)
                connection.write(start, end)
        # Those that had to leave are not held against those that come.
        self._saved_s = max(self._saved_s, -cost_s)
        self._scheduled = any(self._held)
        if self._scheduled:
            self._loop.call_later(_PERIOD_S, self._release)
