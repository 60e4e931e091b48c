"""Import modules without garbage collection, which would scan their objects repeatedly."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def frozen_imports() -> Iterator[None]:
    """Exclude objects made in this context from collection for the life of the process.

    torch alone makes hundreds of thousands of permanent objects. A scan takes 0.2 s, during imports
    and afterwards. The few thousand of them that are garbage stay, too.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
