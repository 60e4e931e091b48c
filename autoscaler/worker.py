"""The program of a worker process: compute at low priority, for a process that must not wait.

Standard input has pickled questions: a function, written ``module:name``, and its arguments.
Standard output has the answers in the same order. A `SojournError` is an answer, too. The process
ends with its parent, or at the end of its input.
"""

import ctypes
import os
import pickle
import signal
import subprocess
import sys
import traceback
from importlib import import_module
from typing import Any

from policy.errors import SojournError

#: Low CPU priority: the requests on this machine come first.
_NICENESS = 10
_THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


class WorkerError(SojournError):
    """A worker process did not start, died, took too long or failed; another may do better."""


def command() -> list[str]:
    return [sys.executable, "-m", "autoscaler.worker"]


def question(function: str, *arguments: Any, **options: Any) -> bytes:
    """Return what to write to a worker so that it calls a function (``module:name``)."""
    return pickle.dumps((function, arguments, options))


def result(answer: tuple[str, Any]) -> Any:
    """Return what the function returned, given the unpickled answer of a worker.

    A `SojournError` that it raised is raised again, and would be again; any other error is a
    `WorkerError`.
    """
    kind, content = answer
    if kind == "returned":
        return content
    raise content if kind == "raised" else WorkerError(content)


def run(
    function: str,
    *arguments: Any,
    time_limit_s: float,
    name: str = "the worker",
    folder: str | None = None,
) -> Any:
    """Return the result of a function (``module:name``) in a worker of its own. Blocks.

    A `SojournError` that it raised is raised again. `WorkerError`: the worker did not start, died,
    took too long or failed.
    """
    try:
        done = subprocess.run(
            command(),
            input=question(function, *arguments),
            capture_output=True,
            timeout=time_limit_s,
            cwd=folder,
        )
    except subprocess.TimeoutExpired:
        raise WorkerError(f"{name} took longer than {time_limit_s:g} s") from None
    except OSError as error:
        raise WorkerError(f"{name} did not start: {error}") from error
    if not done.stdout:
        last_line = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise WorkerError(
            f"{name} ended with status {done.returncode}; its last line: {last_line!r}"
        )
    return result(pickle.loads(done.stdout))


def _answer(function: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[str, Any]:
    try:
        module, _, name = function.partition(":")
        return "returned", getattr(import_module(module), name)(*arguments, **options)
    except SojournError as error:
        return "raised", error
    except Exception as error:
        traceback.print_exc()
        return "failed", f"{type(error).__name__}: {error}".strip(": ")


def main() -> None:
    """Answer until the input ends."""
    if sys.platform == "linux":
        # A parent that dies while it has paused its worker would leave it paused for ever.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.nice(_NICENESS)  # from now on, the parent may pause this process
    os.environ.update(_THREADS)
    with os.fdopen(0, "rb") as questions, os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # what a library prints is no answer
        while questions.peek(1):
            pickle.dump(_answer(*pickle.load(questions)), answers)
            answers.flush()


if __name__ == "__main__":
    main()
