"""Learn from a history in a worker process.

Four weeks take up to a minute of processor time, which Serve's controller does not have.
"""

import threading
from concurrent.futures import Future
from dataclasses import dataclass

from autoscaler import worker
from autoscaler.history.learning import FleetSetting, Learned, learn
from autoscaler.history.source import unpack
from policy.errors import InvalidInputError

#: A process that takes longer hangs.
_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Question:
    """The task of learning from a history.

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


def learn_in_worker(packed: bytes, question: Question) -> "Future[Learned]":
    """Learn from a packed history in another process; this returns at once.

    The future has the error of `learn_from`, or a `WorkerError` if the process failed.
    """
    answer: Future[Learned] = Future()

    def ask() -> None:
        try:
            function = f"{__name__}:{learn_from.__name__}"
            learned = worker.run(function, packed, question, time_limit_s=_TIMEOUT_S)
            answer.set_result(learned)
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=ask, name="sojourn-history", daemon=True).start()
    return answer


def learn_from(packed: bytes, question: Question) -> Learned:
    """Return what a packed history teaches.

    Raises
    ------
    InvalidInputError
        It is not usable; trying again does not help.
    UnreachableError
        Its source does not answer now.
    """
    source, content = unpack(packed)
    trace = source.trace(content, question.now_s)
    known = trace.until(min(question.until_s, question.now_s))
    if not known.counts.size:
        raise InvalidInputError("history: has nothing from before the service was watched")
    return learn(known, question.setting)
