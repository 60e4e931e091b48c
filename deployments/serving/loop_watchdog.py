"""End a process whose event loop hangs, and say where."""

import asyncio
import faulthandler
import os
import threading
import time
from collections.abc import Callable

#: File descriptor: `sys.stderr` may be something else.
_STDERR = 2
#: Ray may lose what a process prints within this time of its end.
_SHOWN_AFTER_S = 1.0


async def end_if_loop_hangs(
    limit_s: Callable[[], float], every_s: float, hung: Callable[[], str | None]
) -> None:
    """End this process if its event loop hangs.

    Whoever runs on the event loop can hang it: a model that batches on the loop's own thread, or
    one that never releases the interpreter's lock. Then nothing written in Python can answer the
    waiting requests. If the process ends, HAProxy takes them to another replica, and Ray starts a
    new one. A thread prints what is `hung`, and ends the process. If it cannot, or does not know
    after `limit_s`, `faulthandler` does, which needs no lock of the interpreter's, and prints a
    traceback of every thread.

    This needs a task of its own, which shows every `every_s` that the loop runs. One that waits for
    other work, such as a thread that imports a library on a busy machine, would end the process of
    a loop that runs.
    """
    seen_s = time.monotonic()
    stopped = threading.Event()

    def watch() -> None:
        while not stopped.wait(every_s):
            if time.monotonic() > seen_s + 2 * every_s and (words := hung()) is not None:
                faulthandler.cancel_dump_traceback_later()
                os.write(_STDERR, f"{words}\n".encode())
                time.sleep(_SHOWN_AFTER_S)
                os._exit(1)

    threading.Thread(target=watch, name="sojourn-watchdog", daemon=True).start()
    try:
        while True:
            faulthandler.dump_traceback_later(limit_s(), exit=True, file=_STDERR)
            seen_s = time.monotonic()
            await asyncio.sleep(every_s)
    finally:
        stopped.set()
        faulthandler.cancel_dump_traceback_later()
