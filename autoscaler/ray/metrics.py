"""The autoscaler's decisions as metrics, through Ray.

Serve's controller exports them, with the prefix `ray_`, where the cluster's Prometheus scrapes.
"""

import functools
import math
from typing import Any

from ray.util.metrics import Gauge

from autoscaler.decision import Decision
from autoscaler.metrics import DECISION_INSTRUMENTS

#: The metrics that have had a value, by application, deployment and field.
_shown: set[tuple[str, str, str]] = set()


def export(application: str, deployment: str, decision: Decision) -> None:
    """Set the metrics of a deployment to its decision; what is not known any more, to NaN."""
    tags = {"application": application, "deployment": deployment}
    for field in DECISION_INSTRUMENTS:
        value, key = getattr(decision, field), (application, deployment, field)
        if value is not None:
            _shown.add(key)
        elif key in _shown:
            value = math.nan
        else:
            continue
        _gauge(field).set(value, tags)


@functools.cache
def _gauge(field: str) -> Any:
    instrument = DECISION_INSTRUMENTS[field]
    return Gauge(instrument.name, instrument.description, instrument.labels)
