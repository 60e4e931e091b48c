"""Run a module as a child of a replica: ``python -m deployments.control.child MODULE``.

It leaves the CPU to others from its start on, also while the module's imports are read, and ends
when its parent does.
"""

import ctypes
import os
import runpy
import signal
import sys

from deployments.threads import limit_threads

#: Low CPU priority: the requests on this machine come first.
_NICENESS = 10
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def give_way() -> None:
    """Leave the CPU to the requests on this machine: low priority, and one thread."""
    os.nice(_NICENESS)
    limit_threads(1)


def main() -> None:
    """Run the module that is named."""
    if sys.platform == "linux":
        # A parent that dies while it has paused its child would leave it paused for ever.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    give_way()  # by its priority, the parent knows that it may pause it
    runpy.run_module(sys.argv[1], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
