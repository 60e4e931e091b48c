"""A metric, whoever exports it."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Instrument:
    """What a metric is called and what it counts.

    Attributes
    ----------
    name : str
        In Prometheus's style: base unit at the end, ``_total`` for counters.
    kind : {"counter", "gauge", "histogram"}
    description : str
        One sentence.
    labels : tuple of str
    buckets : tuple of float
        Upper bounds, of a histogram.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    description: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
