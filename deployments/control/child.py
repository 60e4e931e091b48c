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
NICENESS = 10
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def main() -> None:
    """Run the module that is named."""
    if sys.platform == "linux":
        # A parent that dies while it has paused its child would leave it paused for ever.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # By this the parent knows that it may pause it.
    os.nice(NICENESS)
    limit_threads(1)
    runpy.run_module(sys.argv[1], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
