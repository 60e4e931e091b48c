"""An asyncio event loop in virtual time: where it would wait, its clock moves instead."""

import asyncio
import selectors
from typing import Any


class _Selector(selectors.SelectSelector):
    """Never waits, and moves the clock by what it would have waited."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if not found:
            assert timeout is not None, "nothing will ever happen"
            self.now_s += max(0.0, timeout)
        return found


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Runs timers at once, in order."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._virtual.now_s


class Transport(asyncio.Transport):
    """A transport that keeps what is written, and when it was closed.

    Attributes
    ----------
    written : list of (float, bytes)
        When, and what.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self.written: list[tuple[float, bytes]] = []
        self.closed_s: float | None = None
        self.reading = asyncio.Event()
        self.reading.set()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def is_closing(self) -> bool:
        return self.closed_s is not None

    def close(self) -> None:
        if self.closed_s is None:
            self.closed_s = self._loop.time()
            self.reading.set()

    abort = close

    def write(self, data: Any) -> None:
        assert not self.is_closing()
        self.written.append((self._loop.time(), bytes(data)))

    def write_eof(self) -> None: ...

    def pause_reading(self) -> None:
        self.reading.clear()

    def resume_reading(self) -> None:
        self.reading.set()
