"""A Locust user that sends one inference request and judges the answer.

Imports Locust, which patches the standard library for gevent: only Locust's own process may.
"""

import time

from geventhttpclient.client import HTTPClientPool
from geventhttpclient.useragent import RetriesExceeded
from locust import FastHttpUser

from loadtests.answers import Case
from loadtests.records import Outcome


class InferenceUser(FastHttpUser):
    """Sends requests of the Open Inference Protocol over connections that all users share.

    Sharing lets a few warm connections carry a low rate, instead of each user keeping its own.
    """

    abstract = True
    model = "digits"

    def infer(self, case: Case, due_s: float) -> tuple[int, float, float]:
        """Send a request and judge its answer; Locust's own statistics learn of it too.

        Parameters
        ----------
        case : Case
            The request, and its right answer.
        due_s : float
            When it was due, by ``time.perf_counter``: the response time counts from here.

        Returns
        -------
        outcome : int
            An `Outcome`, or the status of an HTTP error.
        sent_s, finished_s : float
            By ``time.perf_counter``.
        """
        sent_s = time.perf_counter()
        with self.client.post(
            f"/v2/models/{self.model}/infer",
            data=case.body,
            headers={"Content-Type": "application/json"},
            name="infer",
            catch_response=True,
        ) as response:
            finished_s = time.perf_counter()
            response.request_meta["response_time"] = (finished_s - due_s) * 1000
            error = response.request_meta["exception"]
            status = response.status_code
            outcome: int
            if status >= 400:
                outcome = status
            elif error is not None or status != 200:
                outcome = Outcome.TIMEOUT if _is_timeout(error) else Outcome.CONNECTION
            else:
                fault = case.fault(response.content)
                outcome = Outcome.OK if fault is None else Outcome.WRONG
                if fault is not None:
                    response.failure(f"wrong answer: {fault}")
        return outcome, sent_s, finished_s


def share_connections(user: type[InferenceUser], connections: int, timeout_s: float) -> None:
    """Give all users of a class one pool of connections, made as they are needed.

    Parameters
    ----------
    user : type
        The class.
    connections : int
        How many at most.
    timeout_s : float
        How long a user waits to be connected, and then for an answer.
    """
    user.client_pool = HTTPClientPool(
        concurrency=connections, connection_timeout=timeout_s, network_timeout=timeout_s
    )


def _is_timeout(error: BaseException | None) -> bool:
    if isinstance(error, RetriesExceeded):
        error = getattr(error, "original", None)
    return isinstance(error, TimeoutError)
