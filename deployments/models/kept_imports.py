"""Import modules without the garbage collector, which would look at all of them again and again."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept_imports() -> Iterator[None]:
    """Hide what is made meanwhile from the collector, for the rest of the process.

    torch alone makes hundreds of thousands of objects that stay as long as the process. Looking
    at them takes 0.2 s each time, while modules are imported and afterwards. The few thousand of
    them that are garbage stay, too.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
