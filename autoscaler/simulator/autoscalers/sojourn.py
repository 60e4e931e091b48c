"""Sojourn's own autoscaler, the object that runs in Serve's controller, in virtual time."""

import math
from collections import deque

from autoscaler.controller import Autoscaler
from autoscaler.decision import Decision, FleetState
from autoscaler.history.learning import learn
from autoscaler.history.traces import Trace
from autoscaler.reports import ReplicaReport
from autoscaler.settings import AutoscalerSettings
from autoscaler.simulator.scaling import FleetView
from autoscaler.standbys import TwoTierStarts

#: Delay of the reports in whole seconds. Through Ray it was measured as one to two seconds.
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
    starts : TwoTierStarts, optional
        Decide on standbys as well.
    history : Trace, optional
        Load before the run, at negative times, to learn from; not together with `starts`.

    Attributes
    ----------
    autoscaler : Autoscaler
        The live autoscaler.
    decision : Decision or None
        Its last decision; None before the first.
    """

    name = "sojourn"

    def __init__(
        self,
        settings: AutoscalerSettings | None = None,
        *,
        min_replicas: int = 1,
        max_replicas: int = 1000,
        report_lag_s: int = REPORT_LAG_S,
        starts: TwoTierStarts | None = None,
        history: Trace | None = None,
    ) -> None:
        self.autoscaler = Autoscaler(settings, starts)
        self.decision: Decision | None = None
        self._bounds = (min_replicas, max_replicas)
        self._delayed: deque[list[ReplicaReport]] = deque(maxlen=report_lag_s + 1)
        self._history = history

    @property
    def forecast_per_s(self) -> float:
        """Arrival rate of the last sizing; NaN before the first."""
        demand = self.decision.demand_per_s if self.decision else None
        return math.nan if demand is None else demand

    @property
    def standbys(self) -> int:
        """Number of standbys in addition to the replicas."""
        return self.decision.standbys if self.decision else 0

    def replicas(self, view: FleetView) -> int:
        """Return how many replicas should be ordered."""
        now_s = view.now_s
        self._delayed.append(view.reports())
        min_replicas, max_replicas = self._bounds
        fleet = FleetState(
            current_replicas=view.ordered,
            min_replicas=min_replicas,
            max_replicas=max_replicas,
            ready_replicas=view.ready,
            waiting=view.ongoing if view.ready == 0 else 0.0,
            current_standbys=view.standbys,
        )
        if len(self._delayed) == self._delayed.maxlen:
            self.autoscaler.observe(self._delayed[0], now_s)
        if self._history is not None and self._delayed[0]:
            late_share_allowed = self._delayed[0][0].objective.late_share_allowed
            self.autoscaler.learn(learn(self._history, late_share_allowed).state_dict())
            self._history = None
        self.decision = self.autoscaler.decide(now_s, fleet)
        return self.decision.replicas
