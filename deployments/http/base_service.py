"""What every service behind the HTTP interface has: its name, its clients, and its answers."""

import time
from abc import ABC, abstractmethod
from collections import Counter

from deployments.access.control import AccessControl
from deployments.http.body_budget import BodyBudget
from deployments.observability.inference_statistics import BatchTotals
from deployments.observability.tracing import Tracing
from policy.batcher.requests import Refusal


class BaseService(ABC):
    """The state that the HTTP interface shares with a service, whatever computes the answers.

    Parameters
    ----------
    name, version : str
        The model's, in paths and answers.

    Attributes
    ----------
    model_name, model_version : str
        As above.
    replica : str or None
        The id of the Ray replica that it is in, the label `replica` of its metrics; the adapter
        sets it.
    config_error : str or None
        Why the latest configuration was rejected; the adapter that reads configurations sets it.
    answers : Counter of int
        Answers by HTTP status; the HTTP interface counts them.
    batch_totals : BatchTotals
        The batches that the model computed.
    draining : bool
        Whether this replica is about to stop.
    bodies : BodyBudget
        Bounds the memory that the bodies of unanswered requests take.
    access : AccessControl
        Who may use the service.
    tracing : Tracing
        Which requests are traced.
    """

    def __init__(self, name: str, version: str) -> None:
        self.model_name = name
        self.model_version = version
        self.replica: str | None = None
        self.config_error: str | None = None
        self.answers: Counter[int] = Counter()
        self.batch_totals = BatchTotals()
        self.draining = False
        self.bodies = BodyBudget()
        self.access = AccessControl()
        self.tracing = Tracing(name, version)

    def begin_drain(self) -> None:
        """Say that this service is not ready any more; requests that still come are answered."""
        self.draining = True

    @property
    def concurrency(self) -> int | None:
        """Requests that the balancer should send at a time; None: as many as come."""
        return None

    def has_room(self, body: bytes, arrival_s: float, priority: int = 0) -> bool:
        """Return whether one more row may wait; if not, count the rows of `body` as refused.

        Parameters
        ----------
        body : bytes
            The body of an inference request.
        arrival_s : float
            When it reached this process, by `time.monotonic`.
        priority : int
            As in `turns_away`.

        Raises
        ------
        RequestError
            It is refused for another reason than a lack of room.
        """
        if self.turns_away(arrival_s, time.monotonic(), priority) is None:
            return True
        self.refuse(body, arrival_s)
        return False

    @abstractmethod
    def turns_away(self, arrival_s: float, now_s: float, priority: int = 0) -> Refusal | None:
        """Return why one more row cannot be answered in time, without counting it.

        Parameters
        ----------
        arrival_s : float
            When the request reached this process, by `time.monotonic`.
        now_s : float
        priority : int
            As its head gives it, by `PriorityLevels`; 0 if that names none.

        Returns
        -------
        Refusal or None
            FULL or EXPIRED; None if it can.
        """

    @abstractmethod
    def count_answered(self, rows: int, arrival_s: float) -> None:
        """Count a request whose outputs are encoded: `infer_nowait` does not know of that."""

    @abstractmethod
    def refuse(self, body: bytes, arrival_s: float) -> None:
        """Count the rows of a request that is refused before it is parsed.

        Parameters and errors are those of `has_room`.
        """
