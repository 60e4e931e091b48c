"""Sojourn's own autoscaler, the object that runs in Serve's controller, on virtual time."""

import math
from collections import deque

from autoscaler import Autoscaler, Decision
from autoscaler.reports import AutoscalerSettings, ReplicaReport
from simulator.scaling import FleetView

#: Delay of the reports in whole seconds. Measured through Ray, it is one to two seconds.
REPORT_LAG_S = 1


class SojournAutoscaler:
    """Feeds the replicas' reports to `autoscaler.controller.Autoscaler`, as its Ray adapter does.

    Parameters
    ----------
    settings : AutoscalerSettings, optional
        Settings in force unless the replicas report others.
    min_replicas, max_replicas : int
        Bounds on its decisions.
    report_lag_s : int
        Delay after which it sees a report.
    name : str

    Attributes
    ----------
    autoscaler : Autoscaler
        The live autoscaler.
    decision : Decision or None
        Its last decision; None before the first.
    """

    def __init__(
        self,
        settings: AutoscalerSettings | None = None,
        *,
        min_replicas: int = 1,
        max_replicas: int = 1000,
        report_lag_s: int = REPORT_LAG_S,
        name: str = "sojourn",
    ) -> None:
        self.name = name
        self.autoscaler = Autoscaler(settings)
        self.decision: Decision | None = None
        self._bounds = (min_replicas, max_replicas)
        self._delayed: deque[list[ReplicaReport]] = deque(maxlen=report_lag_s + 1)

    @property
    def forecast_per_s(self) -> float:
        """Arrival rate that it last sized for; NaN before the first."""
        demand = self.decision.demand_per_s if self.decision else None
        return math.nan if demand is None else demand

    def replicas(self, view: FleetView) -> int:
        """Return how many replicas should be ordered."""
        self._delayed.append(view.reports())
        if len(self._delayed) == self._delayed.maxlen:
            self.autoscaler.observe(self._delayed[0])
        min_replicas, max_replicas = self._bounds
        self.decision = self.autoscaler.decide(
            view.now_s,
            current_replicas=view.ordered,
            min_replicas=min_replicas,
            max_replicas=max_replicas,
            ready_replicas=view.ready,
            waiting=view.ongoing if view.ready == 0 else 0.0,
        )
        return self.decision.replicas
