"""Run a module as a child of a replica: ``python -m deployments.control.child MODULE``.

It leaves the CPU to others from its start on, also while the module's imports are read, and ends
when its parent does. The module answers questions (`answer_questions`).
"""

import ctypes
import json
import os
import runpy
import signal
import sys
from collections.abc import Callable
from typing import Any

from deployments.models.threads import limit_threads
from policy.errors import SojournError

#: Low CPU priority: the requests on this machine come first.
_NICENESS = 10
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def answer_questions(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer each line of standard input by one line, both in JSON, until it ends.

    Parameters
    ----------
    answer : callable
        Returns the answer to a question. A `SojournError` is an answer, too: ``{"error": why}``.
    """
    for line in sys.stdin:
        try:
            content = answer(json.loads(line))
        except SojournError as error:
            content = {"error": str(error)}
        print(json.dumps(content), flush=True)  # noqa: T201


def main() -> None:
    """Run the module that is named."""
    if sys.platform == "linux":
        # A parent that dies while it has paused its child would leave it paused for ever.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.nice(_NICENESS)  # by this, the parent knows that it may pause the child
    limit_threads(1)
    runpy.run_module(sys.argv[1], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
