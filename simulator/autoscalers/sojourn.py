"""Sojourn's own autoscaler, the object that runs in Serve's controller, on virtual time."""

import math
from collections import deque

from autoscaler import Autoscaler, Decision
from autoscaler.reports import AutoscalerSettings, ReplicaReport
from simulator.scaling import FleetView

#: What the reports of a second are late by, in whole seconds: measured through Ray, one to two.
REPORT_LAG_S = 1


class SojournAutoscaler:
    """Feeds `autoscaler.controller.Autoscaler` with the replicas' reports, as its Ray adapter does.

    Parameters
    ----------
    settings : AutoscalerSettings, optional
        In force unless the replicas report others.
    min_replicas, max_replicas : int
        The bounds that it is told.
    report_lag_s : int
        How many seconds late it sees a report.
    name : str
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
        self._under_way: deque[list[ReplicaReport]] = deque(maxlen=report_lag_s + 1)

    @property
    def forecast_per_s(self) -> float:
        """Rate that it last sized for; NaN before it knows one."""
        demand = self.decision.demand_per_s if self.decision else None
        return math.nan if demand is None else demand

    def replicas(self, view: FleetView) -> int:
        """Give the replicas that should be ordered."""
        self._under_way.append(view.reports())
        if len(self._under_way) == self._under_way.maxlen:
            self.autoscaler.observe(self._under_way[0])
        low, high = self._bounds
        self.decision = self.autoscaler.decide(
            view.now_s,
            current_replicas=view.ordered,
            min_replicas=low,
            max_replicas=high,
            ready_replicas=view.ready,
            waiting=view.ongoing if view.ready == 0 else 0.0,
        )
        return self.decision.replicas
