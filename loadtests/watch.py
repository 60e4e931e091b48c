"""Samples of the service's own predictions and replicas during a load test."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from deployments.control.decision_reader import replicas_in
from loadtests.service import policy_of

WATCH_EVERY_S = 1.0


@dataclass(frozen=True)
class Sample:
    """The reports of the service at one moment.

    Attributes
    ----------
    at_s : float
        When, by ``time.perf_counter``; in the report, in seconds from the start of the schedule.
    predicted_ms : mapping of str to float
        Percentiles of the response time that the replica which answered predicts for its clients,
        keyed by percentile ("99"); empty if it predicts none.
    replicas : int or None
        Replicas that the autoscaler has ordered; None if it has decided nothing.
    demand_per_s : float or None
        Requests per second that it sized for; None if unknown.
    reason : str or None
        Why it ordered them.
    """

    at_s: float
    predicted_ms: Mapping[str, float]
    replicas: int | None
    demand_per_s: float | None
    reason: str | None


def sample(at_s: float, policy: Mapping[str, Any], autoscaler: Mapping[str, Any]) -> Sample:
    """Return a sample of one model's ``GET /sojourn/policy`` and of ``GET /sojourn/autoscaler``."""
    newest = autoscaler.get("newest") or {}
    return Sample(
        at_s,
        policy.get("predicted_ms") or {},
        replicas_in(autoscaler) if newest else None,
        newest.get("demand_per_s"),
        newest.get("reason"),
    )


class ServiceWatch:
    """Queries the service once a second while the context lasts.

    Parameters
    ----------
    model : str
        The model whose predictions matter.
    ask : callable
        Returns the JSON object at a path of the service, or None without access.
    """

    def __init__(self, model: str, ask: Callable[[str], Mapping[str, Any] | None]) -> None:
        self._model = model
        self._ask = ask
        self._samples: list[Sample] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "ServiceWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(WATCH_EVERY_S):
            policy = self._ask("/sojourn/policy")
            if policy is not None:
                decisions = self._ask("/sojourn/autoscaler") or {}
                self._samples.append(
                    sample(time.perf_counter(), policy_of(self._model, policy), decisions)
                )

    def since(self, start_s: float) -> list[dict[str, Any]]:
        """Return the samples from `start_s` on, with times counted from there, ready for JSON."""
        return [
            {**asdict(one), "at_s": one.at_s - start_s}
            for one in self._samples
            if one.at_s >= start_s
        ]
