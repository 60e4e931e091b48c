"""The autoscaler's decisions as metrics, through Ray.

Serve's controller exports them, with the prefix `ray_`, where the cluster's Prometheus scrapes.
"""

import functools
from typing import Any

from ray.util.metrics import Gauge

from autoscaler.decision import Decision
from autoscaler.decision_instruments import DECISION_INSTRUMENTS


def export(application: str, deployment: str, decision: Decision) -> None:
    """Set the metrics of a deployment to its decision."""
    tags = {"application": application, "deployment": deployment}
    for field in DECISION_INSTRUMENTS:
        value = getattr(decision, field)
        if value is not None:
            _gauge(field).set(value, tags)


@functools.cache
def _gauge(field: str) -> Any:
    instrument = DECISION_INSTRUMENTS[field]
    return Gauge(instrument.name, instrument.description, instrument.labels)
