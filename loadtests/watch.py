"""Samples of the service's own predictions and replicas during a load test."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from deployments.control.decision_reader import replicas_in
from loadtests.service import policy_of

WATCH_EVERY_S = 1.0


def sample(at_s: float, policy: Mapping[str, Any], autoscaler: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a model's policy and ``GET /sojourn/autoscaler`` say at a moment, for the report.

    `predicted_ms` are percentiles of the response time that the replica which answered predicts for
    its clients. `replicas` is the number that the autoscaler has ordered, for `demand_per_s` and a
    `reason`; None if it has decided nothing.
    """
    newest = autoscaler.get("newest") or {}
    return {
        "at_s": at_s,
        "predicted_ms": policy.get("predicted_ms") or {},
        "replicas": replicas_in(autoscaler) if newest else None,
        "demand_per_s": newest.get("demand_per_s"),
        "reason": newest.get("reason"),
    }


class ServiceWatch:
    """Asks the service about a model once a second while the context lasts.

    `ask` returns the JSON object at a path of the service, or None without access.
    """

    def __init__(self, model: str, ask: Callable[[str], Mapping[str, Any] | None]) -> None:
        self._model = model
        self._ask = ask
        self._samples: list[dict[str, Any]] = []
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
            {**one, "at_s": one["at_s"] - start_s}
            for one in self._samples
            if one["at_s"] >= start_s
        ]
