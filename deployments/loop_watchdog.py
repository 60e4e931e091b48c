"""End a process whose event loop hangs, and say where."""

import faulthandler

#: File descriptor: `sys.stderr` may be something else.
_STDERR = 2


class LoopWatchdog:
    """End this process, with a traceback of every thread, unless `restart` is called in time.

    Whoever runs on the event loop can hang it: a model that batches on the loop's own thread, or
    one that never releases the interpreter's lock. Then nothing written in Python can answer the
    waiting requests. If the process ends, HAProxy takes them to another replica, and Ray starts a
    new one. `faulthandler` watches from a thread that needs no lock of the interpreter's.
    """

    def restart(self, limit_s: float) -> None:
        """Allow the event loop another `limit_s` until the next call."""
        faulthandler.dump_traceback_later(limit_s, exit=True, file=_STDERR)

    def stop(self) -> None:
        """Watch no longer."""
        faulthandler.cancel_dump_traceback_later()
