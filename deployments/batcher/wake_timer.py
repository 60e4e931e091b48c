"""The timer that wakes a batcher when it must decide again."""

import asyncio
import time
from collections.abc import Callable


class WakeTimer:
    """One timer, which is moved rather than joined by a second one.

    Parameters
    ----------
    loop : AbstractEventLoop
    callback : callable
        Called when the time has come.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._handle: asyncio.TimerHandle | None = None
        self._at_s: float | None = None

    def set(self, at_s: float | None) -> None:
        """Wake at `at_s`, by `time.monotonic`, and not at any other time; None: not at all."""
        if at_s == self._at_s:
            return
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._at_s = at_s
        if at_s is not None:
            self._handle = self._loop.call_later(at_s - time.monotonic(), self._wake)

    def _wake(self) -> None:
        self._handle = self._at_s = None
        self._callback()
