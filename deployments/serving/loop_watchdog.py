"""End a process whose event loop hangs, and say where."""

import asyncio
import faulthandler
from collections.abc import Callable

#: File descriptor: `sys.stderr` may be something else.
_STDERR = 2


async def end_if_loop_hangs(limit_s: Callable[[], float], every_s: float) -> None:
    """End this process, with a traceback of every thread, if its event loop hangs so long.

    Whoever runs on the event loop can hang it: a model that batches on the loop's own thread, or
    one that never releases the interpreter's lock. Then nothing written in Python can answer the
    waiting requests. If the process ends, HAProxy takes them to another replica, and Ray starts a
    new one. `faulthandler` watches from a thread that needs no lock of the interpreter's.

    This needs a task of its own, which shows every `every_s` that the loop runs. One that waits for
    other work, such as a thread that imports a library on a busy machine, would end the process of
    a loop that runs.
    """
    try:
        while True:
            faulthandler.dump_traceback_later(limit_s(), exit=True, file=_STDERR)
            await asyncio.sleep(every_s)
    finally:
        faulthandler.cancel_dump_traceback_later()
