"""Long work on the event loop, in turns: the loop reads and answers other requests between them."""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Generator
from statistics import median_low
from typing import Any

#: How long a turn may last, plus the piece of work with which it ends.
TURN_S = 0.5e-3

#: So many works tell what the next one takes. Their median: a stall during one says nothing of it.
_LATEST = 5
#: What they tell is trusted for so long; then one work is let through, to know it anew.
_TRUSTED_FOR_S = 1.0

#: Work that yields after each piece, none longer than a fraction of a millisecond, and returns.
Work = Generator[None, None, Any]


class Turn:
    """Work that has not ended; `cancel` gives it up."""

    __slots__ = ("on_done", "size", "work")

    def __init__(self, work: Work, on_done: Callable[[Any], None], size: float) -> None:
        self.work: Work | None = work
        self.on_done = on_done
        self.size = size

    def cancel(self) -> None:
        """Cancel the work: it does not go on, and nobody is told."""
        self.work = None


class Turns:
    """Runs works one after the other, in turns of `TURN_S`.

    There is one turn in an iteration of the loop, however many works wait, so that is what they
    keep everything else waiting for.

    Parameters
    ----------
    call_soon : callable, optional
        Runs a callback in the loop's next iteration; by default that of the running loop.
    clock : callable
        Time in seconds.
    """

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._call_soon = call_soon
        self._clock = clock
        self._waiting: deque[Turn] = deque()
        #: When the first of them began, once it has.
        self._began_s: float | None = None
        #: Times per unit of size of the latest works, and when the last of them ended.
        self._each_s: deque[float] = deque(maxlen=_LATEST)
        self._ended_s = -math.inf

    def ends_in_s(self, size: float) -> float:
        """Return how long work of a size that is started now is likely to take until it ends.

        What else the loop does meanwhile is part of it. It is 0 if that is not known: nothing has
        ended yet, or nothing waits and nothing has ended for a second.
        """
        waiting = [turn.size for turn in self._waiting if turn.work is not None]
        trusted = waiting or self._clock() < self._ended_s + _TRUSTED_FOR_S
        if not trusted or not self._each_s:
            return 0.0
        return median_low(self._each_s) * (sum(waiting) + size)

    def start(self, work: Work, on_done: Callable[[Any], None], size: float = 0.0) -> Turn:
        """Have work done.

        Parameters
        ----------
        work : Work
        on_done : callable
            Called with what the work returns, or the exception that it raises, unless it is
            cancelled.
        size : float
            What its time is in proportion to; 0 if that is not known.
        """
        turn = Turn(work, on_done, size)
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            self._schedule()
        return turn

    async def result(self, work: Work, size: float = 0.0) -> Any:
        """Return what work returns, once it is done; cancelling the call gives it up."""
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def finish(outcome: Any) -> None:
            if isinstance(outcome, Exception):
                done.set_exception(outcome)
            else:
                done.set_result(outcome)

        turn = self.start(work, finish, size)
        try:
            return await done
        finally:
            turn.cancel()

    def _schedule(self) -> None:
        (self._call_soon or asyncio.get_running_loop().call_soon)(self._run)

    def _run(self) -> None:
        ends_s = self._clock() + TURN_S
        while self._waiting:
            turn = self._waiting[0]
            if self._began_s is None:
                self._began_s = self._clock()
            try:
                while turn.work is not None:
                    next(turn.work)
                    if self._clock() >= ends_s:
                        self._schedule()
                        return
            except StopIteration as stop:
                outcome = stop.value
            except Exception as error:
                outcome = error
            self._waiting.popleft()
            took_s, self._began_s = self._clock() - self._began_s, None
            if turn.work is not None:
                if turn.size:
                    self._each_s.append(took_s / turn.size)
                    self._ended_s = self._clock()
                turn.work = None
                turn.on_done(outcome)
