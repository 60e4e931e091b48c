"""Starts in two tiers: how many replicas there should be, and how many standbys beside them.

A *standby* is a replica whose process is up and whose model is at hand, but which takes no traffic
and costs a share of a replica. It becomes a replica in seconds (`standby_s`); a new standby, or a
replica without one, takes minutes (`cold_s`). So replicas need only cover the demand until a
standby could serve, and replicas and standbys together the demand until a cold start could. The two
questions differ in the horizon alone, and the same autoscaler answers both.

How many standbys pay follows from `risk` and the price. A replica pays as long as the chance that
it is needed exceeds its price over what a shortage costs (the newsvendor's rule; Arrow, Harris and
Marschak, Optimal inventory policy, Econometrica 19, 1951): risk = 1 / (1 + u), if a shortage costs
u times what a replica costs. A standby at the price p then pays up to the risk p / (p + u), so a
cheap reserve is a large one.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from autoscaler.controller import Autoscaler
from autoscaler.decision import Decision, FleetState
from autoscaler.reports import ReplicaReport
from autoscaler.settings import AutoscalerSettings
from policy.errors import InvalidInputError


@dataclass(frozen=True)
class TwoTierStarts:
    """How long starts take from a standby and without one, and what a standby costs.

    Attributes
    ----------
    standby_s : float
        Time until a standby serves, at least 0.
    cold_s : float
        Time until a new standby is ready, and until a replica serves without one; at least
        `standby_s`.
    standby_price : float
        Price of a standby as a share of a replica's, above 0. From 1 on, no standby pays.

    Raises
    ------
    InvalidInputError
        A value is out of its range.
    """

    standby_s: float
    cold_s: float
    standby_price: float

    def __post_init__(self) -> None:
        if not 0 <= self.standby_s <= self.cold_s < float("inf"):
            raise InvalidInputError(
                f"start times: standby_s must be from 0 to cold_s, {self.cold_s:g}, not "
                f"{self.standby_s:g}"
            )
        if not 0 < self.standby_price < float("inf"):
            raise InvalidInputError(f"standby_price: must be above 0, not {self.standby_price}")

    @property
    def pay(self) -> bool:
        """Whether a standby can pay at all."""
        return self.standby_price < 1 and self.standby_s < self.cold_s


def standby_risk(risk: float, standby_price: float) -> float:
    """Return the risk up to which a standby pays where `risk` is that of a replica.

    Parameters
    ----------
    risk : float
        Between 0 and 1.
    standby_price : float
        Share of a replica's price.
    """
    return standby_price * risk / (standby_price * risk + 1 - risk)


class StandbyAutoscaler:
    """Decides on replicas and on standbys.

    Parameters
    ----------
    starts : TwoTierStarts
    settings : AutoscalerSettings, optional
        In force until replicas report others.
    """

    def __init__(self, starts: TwoTierStarts, settings: AutoscalerSettings | None = None) -> None:
        settings = settings or AutoscalerSettings()
        self._starts = starts
        self._replicas = Autoscaler(settings)
        self._replicas.assume_start_time(starts.standby_s if starts.pay else starts.cold_s)
        self._all = Autoscaler(self._for_standbys(settings))
        self._all.assume_start_time(starts.cold_s)

    @property
    def settings(self) -> AutoscalerSettings:
        """The settings in force."""
        return self._replicas.settings

    def observe(self, reports: Iterable[ReplicaReport], now_s: float | None = None) -> None:
        """Take in reports, as `Autoscaler.observe` does."""
        reports = list(reports)
        self._replicas.observe(reports, now_s)
        if self._starts.pay:
            self._all.observe(map(self._report_for_standbys, reports), now_s)

    def decide(self, now_s: float, fleet: FleetState, current_standbys: int) -> Decision:
        """Decide how many replicas and how many standbys there should be.

        Parameters
        ----------
        now_s : float
            As for `Autoscaler.decide`.
        fleet : FleetState
            Its bounds are those of replicas and standbys together.
        current_standbys : int
            Standbys ordered so far, whether they are up or not.

        Returns
        -------
        Decision
            That of the replicas, with `standbys`.
        """
        decision = self._replicas.decide(now_s, fleet)
        if not self._starts.pay:
            return decision
        current = fleet.current_replicas + current_standbys
        both = self._all.decide(now_s, replace(fleet, current_replicas=current))
        standbys = max(0, both.replicas - decision.replicas)
        return replace(
            decision,
            standbys=standbys,
            reason=f"{decision.reason}; {standbys} standbys: {both.reason}",
        )

    def _for_standbys(self, settings: AutoscalerSettings) -> AutoscalerSettings:
        risk = self._replicas.risk if settings.risk is None else settings.risk
        return replace(settings, risk=standby_risk(risk, self._starts.standby_price))

    def _report_for_standbys(self, report: ReplicaReport) -> ReplicaReport:
        if report.settings is None:
            return report
        return replace(report, settings=self._for_standbys(report.settings))
