"""An asyncio event loop in virtual time: where it would wait, its clock moves instead."""

import asyncio
import selectors


class _Selector(selectors.SelectSelector):
    """Never waits, and moves the clock by what it would have waited."""

    def __init__(self):
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout=None):
        found = super().select(0)
        if not found:
            assert timeout is not None, "nothing will ever happen"
            self.now_s += max(0.0, timeout)
        return found


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Runs timers at once, in order."""

    def __init__(self):
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self):
        """Return the virtual time in seconds."""
        return self._virtual.now_s


class Transport(asyncio.Transport):
    """A transport that keeps what is written and when, and when it was closed or broken off."""

    def __init__(self, loop):
        super().__init__()
        self._loop = loop
        self.written = []
        self.closed_s = None
        self.aborted = False
        #: What the client has not read.
        self.unread_bytes = 0
        self.reading = asyncio.Event()
        self.reading.set()

    def get_extra_info(self, name, default=None):
        return default

    def get_write_buffer_size(self):
        return self.unread_bytes

    def is_closing(self):
        return self.closed_s is not None

    def close(self):
        if self.closed_s is None:
            self.closed_s = self._loop.time()
            self.reading.set()

    def abort(self):
        self.aborted = True
        self.close()

    def write(self, data):
        assert not self.is_closing()
        self.written.append((self._loop.time(), bytes(data)))

    def write_eof(self): ...

    def pause_reading(self):
        self.reading.clear()

    def resume_reading(self):
        self.reading.set()
