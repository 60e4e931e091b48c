"""Learn from a history in a process of its own: ``python -m autoscaler.history.child``.

Four weeks take up to a minute of processor time, which Serve's controller does not have. The
process reads one line of JSON (`Question`) and then a packed history from standard input, and
writes one JSON object to standard output: ``learned``, or ``error`` (trying again does not help),
or ``unreachable`` (it may).
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from typing import Any

from autoscaler.history.learning import FleetSetting, learn
from autoscaler.history.prometheus import UnreachableError
from autoscaler.history.source import unpack
from policy.errors import InvalidInputError

#: A process that takes longer hangs.
_TIMEOUT_S = 600.0
_NICENESS = 10


@dataclass(frozen=True)
class Question:
    """What is to be learned.

    Attributes
    ----------
    setting : FleetSetting
    now_s : float
        Unix time.
    until_s : float
        Later requests have been seen by the autoscaler itself.
    """

    setting: FleetSetting
    now_s: float
    until_s: float


def learn_beside(packed: bytes, question: Question) -> "Future[dict[str, Any]]":
    """Learn from a packed history in another process; this returns at once.

    Returns
    -------
    Future of dict
        What the process wrote; ``unreachable`` if it failed.
    """
    answer: Future[dict[str, Any]] = Future()

    def ask() -> None:
        try:
            answer.set_result(_ask(json.dumps(asdict(question)).encode() + b"\n" + packed))
        except BaseException as error:
            answer.set_result({"unreachable": f"the process that learns from it failed ({error})"})

    threading.Thread(target=ask, name="sojourn-history", daemon=True).start()
    return answer


def _ask(message: bytes) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "autoscaler.history.child"],
        input=message,
        capture_output=True,
        timeout=_TIMEOUT_S,
    )
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise RuntimeError(lines[-1] if lines else f"exit status {done.returncode}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def answer_to(message: bytes) -> Mapping[str, Any]:
    """Return the answer to a question and a packed history."""
    line, _, packed = message.partition(b"\n")
    asked = json.loads(line)
    question = Question(**{**asked, "setting": FleetSetting(**asked["setting"])})
    try:
        source, content = unpack(packed)
        trace = source.trace(content, question.now_s)
        known = trace.until(min(question.until_s, question.now_s))
        if not known.counts.size:
            return {"error": "history: has nothing from before the service was watched"}
        return {"learned": learn(known, question.setting).to_dict()}
    except InvalidInputError as error:
        return {"error": str(error)}
    except UnreachableError as error:
        return {"unreachable": str(error)}


def main() -> None:
    """Answer one question."""
    os.nice(_NICENESS)
    json.dump(answer_to(sys.stdin.buffer.read()), sys.stdout)


if __name__ == "__main__":
    main()
