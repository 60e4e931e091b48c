"""Bring a history to a deployment's autoscaler, while it decides.

Replicas report the code of the history in their config, and store it in the cluster. It is read
in a worker process (`autoscaler.history.learning_worker`), once the replicas have reported the load
that one of them can take. A service that has been watched for a day knows its recent past
better, so it reads no history any more; nor does one that has read this one.
"""

import logging
from collections.abc import Callable
from concurrent.futures import Future

from autoscaler.controller import Autoscaler
from autoscaler.history.learning import DAY_S, Learned
from autoscaler.history.learning_worker import Question, learn_in_worker
from policy.errors import InvalidInputError

logger = logging.getLogger("ray.serve")

#: Pauses before a server that does not answer is asked again: the first, and the longest.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 15.0, 600.0
#: Replicas report their rates soon, unless no rate keeps the SLA; the risk is then not learned.
RATES_WITHIN_S = 60.0
_WATCHED = "the service has been watched for a day, and knows its recent past better"

Learner = Callable[[bytes, Question], "Future[Learned]"]


class HistoryFeed:
    """The history of one deployment, until its autoscaler has learned from it.

    Parameters
    ----------
    deployment : str
        For the log.
    load : callable
        Returns a future of what is stored of the history; None if there is nothing.
    learner : callable, optional
        As `autoscaler.history.learning_worker.learn_in_worker`.

    Attributes
    ----------
    settled : int
        The code of the history that needs no more work; 0 if there is none.
    """

    def __init__(
        self,
        deployment: str,
        load: Callable[[], "Future[bytes | None]"],
        learner: Learner = learn_in_worker,
    ) -> None:
        self.settled = 0
        self._deployment = deployment
        self._load = load
        self._learner = learner
        self._code = 0
        self._loading: Future[bytes | None] | None = None
        self._learning: Future[Learned] | None = None
        self._pause_s = FIRST_PAUSE_S
        self._wait_until_s = 0.0
        self._trouble = ""

    def follow(self, now_s: float, code: int | None, autoscaler: Autoscaler) -> str:
        """Do what can be done at once, and return a remark for the decision's reason.

        Parameters
        ----------
        now_s : float
        code : int or None
            Of the history in the config; 0 if it has none, None if that is not known now.
        autoscaler : Autoscaler
            It learns from the history as soon as the worker has.
        """
        if code is None:
            code = self._code
        if code != self._code:
            self._code, self._trouble = code, ""
            self._loading = self._learning = None
            self._pause_s, self._wait_until_s = FIRST_PAUSE_S, 0.0
        if not code or code == self.settled:
            return self._trouble
        if autoscaler.watched_s(now_s) > DAY_S:
            self.settled = code
            logger.info("%s: its history is not read: %s", self._deployment, _WATCHED)
        elif self._learning is not None:
            self._take(now_s, autoscaler)
        elif self._loading is not None:
            self._learn(now_s, autoscaler)
        elif now_s >= self._wait_until_s and self._knows_enough(now_s, autoscaler):
            self._loading = self._load()
        if code == self.settled:
            return self._trouble
        return self._trouble or "; its history is being read"

    def _knows_enough(self, now_s: float, autoscaler: Autoscaler) -> bool:
        setting = autoscaler.fleet_setting()
        if setting is None:
            return False
        return setting.knows_rates or autoscaler.watched_s(now_s) > RATES_WITHIN_S

    def _learn(self, now_s: float, autoscaler: Autoscaler) -> None:
        """Begin to learn, when what is stored has arrived."""
        assert self._loading is not None
        setting = autoscaler.fleet_setting()
        if not self._loading.done() or setting is None:
            return
        packed, self._loading = self._loading.result(), None
        if packed is None:
            self._retry(now_s, "it is not in the cluster's store")
            return
        question = Question(setting, now_s, autoscaler.forecasts_from_s(now_s))
        self._learning = self._learner(packed, question)

    def _take(self, now_s: float, autoscaler: Autoscaler) -> None:
        """Hand over what was learned, when it has arrived."""
        assert self._learning is not None
        if not self._learning.done():
            return
        answer, self._learning = self._learning, None
        try:
            learned = answer.result()
            autoscaler.learn(learned)
        except InvalidInputError as error:
            self.settled = self._code
            self._note(f"; its history is not used: {error}")
        except Exception as error:
            self._retry(now_s, str(error))
        else:
            self.settled, self._trouble = self._code, ""
            logger.info("%s: learned from %.1f days of history", self._deployment, learned.days)

    def _retry(self, now_s: float, why: str) -> None:
        self._wait_until_s = now_s + self._pause_s
        self._note(f"; its history is not known yet: {why}")
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def _note(self, trouble: str) -> None:
        if trouble != self._trouble:
            logger.warning("%s%s", self._deployment, trouble)
        self._trouble = trouble
