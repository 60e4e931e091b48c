"""Bring a history that replicas have stored to the autoscaler, while it decides.

A service that has been watched for a day knows its recent past better, so it takes over no history
any more; nor does one that has taken over this one.
"""

import logging
from collections.abc import Callable
from concurrent.futures import Future

from autoscaler.controller import Autoscaler
from autoscaler.history.learning import stored_load
from autoscaler.history.source import DAY_S
from policy.errors import InvalidInputError

logger = logging.getLogger("ray.serve")

#: Pause before the store is asked again for what is not there yet.
PAUSE_S = 15.0


class HistoryFeed:
    """The history of one deployment, until its autoscaler has taken it over.

    `load` returns a future of what is stored of it. `settled` is the code of the history that needs
    no more work; 0 if there is none.
    """

    def __init__(self, deployment: str, load: Callable[[], "Future[bytes | None]"]) -> None:
        self.settled = 0
        self._deployment = deployment
        self._load = load
        self._loading: Future[bytes | None] | None = None
        self._wait_until_s = 0.0

    def follow(self, now_s: float, code: int, autoscaler: Autoscaler) -> None:
        """Do what can be done at once for the history of a code; 0: replicas have stored none."""
        if code in (0, self.settled):
            return
        if autoscaler.watched_s(now_s) > DAY_S:
            self.settled = code
        elif self._loading is None:
            if now_s >= self._wait_until_s:
                self._loading = self._load()
        elif self._loading.done():
            load = stored_load(self._loading.result(), code)
            self._loading, self._wait_until_s = None, now_s + PAUSE_S
            if load is None:
                return
            self.settled = code
            try:
                autoscaler.learn(load)
            except InvalidInputError as error:
                logger.warning("%s: its history is not used: %s", self._deployment, error)
            else:
                logger.info("%s: took over the load of past days", self._deployment)
