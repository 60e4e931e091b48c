"""A Locust user that sends an inference request and checks the answer.

This module imports Locust, which patches the standard library for gevent. Import it only in
Locust's own process.
"""

import time
from typing import Any

from geventhttpclient.client import HTTPClientPool
from geventhttpclient.useragent import RetriesExceeded
from locust import FastHttpUser

from deployments.access.credentials import authorization, read_token
from loadtests.answers import Case
from loadtests.records import Outcome

#: Sent with every request: the token in the environment.
AUTHORIZATION = authorization(read_token())


class InferenceUser(FastHttpUser):
    """A user that sends requests of the Open Inference Protocol over shared connections.

    With shared connections a low rate uses a few warm connections, instead of one per user.
    """

    abstract = True
    model = "digits"
    #: Time of reading its last answer, by ``time.perf_counter``.
    free_since_s = 0.0

    def infer(self, case: Case, due_s: float) -> tuple[int, float, float]:
        """Send a request, check its answer, and report both to Locust's statistics.

        Parameters
        ----------
        due_s : float
            When the request was due, by ``time.perf_counter``; the response time starts here.

        Returns
        -------
        outcome : int
            An `Outcome`, or the status of an HTTP error.
        """
        body: Any = case.body  # Locust takes bytes, too, but its annotation does not
        sent_s = time.perf_counter()
        with self.client.post(
            f"/v2/models/{self.model}/infer",
            data=body,
            headers={**case.headers, **AUTHORIZATION},
            name="infer",
            catch_response=True,
        ) as response:
            finished_s = time.perf_counter()
            response.request_meta["response_time"] = (finished_s - due_s) * 1000
            error = response.request_meta["exception"]
            status = response.status_code
            outcome: int
            fault: str | None
            if status >= 400:
                outcome = status
                fault = (response.content or b"").decode(errors="replace")
            elif error is not None or status != 200:
                outcome = Outcome.TIMEOUT if _is_timeout(error) else Outcome.CONNECTION
                fault = str(error or f"HTTP {status}")
            else:
                fault = case.fault(response.content)
                outcome = Outcome.OK if case.outputs else Outcome.ANSWERED
                if fault is not None:
                    outcome = Outcome.WRONG
                    response.failure(f"wrong answer: {fault}")
            if fault is not None:
                self.failed(outcome, case, fault)
        return outcome, sent_s, finished_s

    def failed(self, outcome: int, case: Case, fault: str) -> None:
        """Handle a failed request; for subclasses."""


def share_connections(user: type[InferenceUser], connections: int, timeout_s: float) -> None:
    """Make all users of a class share one pool of connections, opened on demand.

    Parameters
    ----------
    timeout_s : float
        Timeout of connecting, and then of waiting for the answer.
    """
    user.client_pool = HTTPClientPool(
        concurrency=connections, connection_timeout=timeout_s, network_timeout=timeout_s
    )


def _is_timeout(error: BaseException | None) -> bool:
    if isinstance(error, RetriesExceeded):
        error = getattr(error, "original", None)
    return isinstance(error, TimeoutError)
