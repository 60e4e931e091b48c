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

Their number may also be set. Standbys then take the place of as many of the replicas that a cold
start would require, and if fewer are required, they are kept besides.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from autoscaler.controller import Autoscaler
from autoscaler.decision import Decision, FleetState
from autoscaler.history.learning import FleetSetting, Learned
from autoscaler.reports import ReplicaReport
from autoscaler.settings import AUTO, AutoscalerSettings
from policy.errors import InvalidInputError

#: Time until a standby of the real service serves, and its first report of that has come.
PROMOTION_S = 3.0


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
    starts : TwoTierStarts, optional
        Standbys pay or not by these start times and this price, whatever the settings say. None:
        the settings in force decide, and cold starts take as long as observed.
    settings : AutoscalerSettings, optional
        In force until replicas report others.

    Attributes
    ----------
    may_have_standbys : bool
        Whether the settings that ask for standbys are followed.
    """

    def __init__(
        self, starts: TwoTierStarts | None = None, settings: AutoscalerSettings | None = None
    ) -> None:
        self.may_have_standbys = True
        self._given = starts
        self._replicas = Autoscaler(settings)
        #: Decides on replicas and standbys together; None where no standbys are wanted.
        self._all: Autoscaler | None = None
        self._reports = _LoadReports()
        #: The latest reports as `_all` is given them, with those that they were made from.
        self._for_all: dict[str, tuple[ReplicaReport, ReplicaReport]] = {}
        if starts is not None:
            self._replicas.assume_start_time(starts.standby_s if starts.pay else starts.cold_s)
            if starts.pay:
                self._all = Autoscaler(self._settings_for_all(self.settings))
                self._all.assume_start_time(starts.cold_s)

    @property
    def settings(self) -> AutoscalerSettings:
        """The settings in force."""
        return self._replicas.settings

    def observe(self, reports: Iterable[ReplicaReport], now_s: float | None = None) -> None:
        """Take in reports, as `Autoscaler.observe` does.

        Those of standbys say nothing of the load, and are left out.
        """
        reports = self._reports.of(reports)
        self._replicas.observe(reports, now_s)
        self._follow_settings()
        if self._all is not None:
            self._all.observe(map(self._report_for_all, reports), now_s)

    def decide(
        self,
        now_s: float,
        fleet: FleetState,
        current_standbys: int = 0,
        ready_standbys: int | None = None,
    ) -> Decision:
        """Decide how many replicas and how many standbys there should be.

        Parameters
        ----------
        now_s : float
            As for `Autoscaler.decide`.
        fleet : FleetState
            Without standbys; but its bounds are those of replicas and standbys together.
        current_standbys : int
            Standbys ordered so far, whether they are up or not.
        ready_standbys : int, optional
            Those of them that are up. None: unknown, and `fleet.ready_replicas` is taken for all.

        Returns
        -------
        Decision
            That of the replicas, with `standbys`.
        """
        decision = self._replicas.decide(now_s, fleet)
        if self._all is None:
            return decision
        everything = replace(fleet, current_replicas=fleet.current_replicas + current_standbys)
        if fleet.ready_replicas is not None and ready_standbys is not None:
            everything = replace(
                everything,
                ready_replicas=fleet.ready_replicas + ready_standbys,
                carrying_replicas=fleet.ready_replicas,
            )
        both = self._all.decide(now_s, everything)
        self._follow_settings()
        if not decision.replicas or self._promotion_s(self._all) is None:
            return decision
        return self._with_standbys(now_s, decision, both, fleet.most)

    def _with_standbys(
        self, now_s: float, decision: Decision, both: Decision, most: int
    ) -> Decision:
        """Divide what is required in all into replicas and standbys."""
        replicas, remark = decision.replicas, ""
        wanted = self._wanted
        if wanted == AUTO:
            standbys = max(0, both.replicas - replicas)
        else:
            assert isinstance(wanted, int)
            replicas = max(replicas, both.replicas - wanted)
            standbys = min(wanted, most - replicas)
            if standbys < wanted:
                remark = f" (max_replicas leaves no room for {wanted})"
            if replicas > decision.replicas:
                # What they can take is more than the forecast of the replicas asked for.
                self._replicas.note_limited(now_s)
        return replace(
            decision,
            replicas=replicas,
            standbys=standbys,
            stuck_replicas=max(decision.stuck_replicas, both.stuck_replicas),
            reason=f"{replicas} {_verb(replicas, 'serve')}, {standbys} "
            f"{_verb(standbys, 'stand')} by{remark}; replicas: {decision.reason}; "
            f"with standbys: {both.reason}",
        )

    def note_limited(self, now_s: float) -> None:
        """Note that fewer replicas were ordered than were decided on, as within a budget."""
        self._replicas.note_limited(now_s)

    def fleet_setting(self) -> FleetSetting | None:
        """Return what a history is learned for, as `Autoscaler.fleet_setting` does."""
        return self._replicas.fleet_setting()

    def watched_s(self, now_s: float) -> float:
        """Return for how long the load has been watched, restarts included, in s."""
        return self._replicas.watched_s(now_s)

    def forecasts_from_s(self, now_s: float) -> float:
        """Return since when the forecasts know the load; a history must end by then."""
        return self._replicas.forecasts_from_s(now_s)

    def learn(self, learned: Learned) -> None:
        """Take over what a history has taught, as `Autoscaler.learn` does."""
        self._replicas.learn(learned)
        if self._all is not None:
            self._all.learn(learned)

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """Copy all that was learned, as `Autoscaler.snapshot` does."""
        replicas = self._replicas.snapshot()
        if self._all is None:
            return replicas
        both = self._all.snapshot()
        return lambda: {**replicas(), "all": both()}

    def state_dict(self) -> dict[str, Any]:
        """Return all that was learned as plain numbers, text, lists and dicts, ready for JSON."""
        return self.snapshot()()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned.

        Raises
        ------
        InvalidInputError
            The state has another version or form. The autoscaler is then unchanged.
        """
        both = None
        if isinstance(state, Mapping) and "all" in state:
            both = Autoscaler()
            both.load_state(state["all"])
        self._replicas.load_state(state)
        self._all = both
        self._follow_settings()

    @property
    def _wanted(self) -> int | str:
        """Standbys that are wanted: a number, or `AUTO`."""
        if self._given is not None:
            return AUTO if self._given.pay else 0
        return self.settings.standbys if self.may_have_standbys else 0

    def _promotion_s(self, both: Autoscaler) -> float | None:
        """Return how long a standby takes to serve; None if none pays."""
        cold_s = both.horizon_s
        if self._given is not None:
            return self._given.standby_s
        if self._wanted == AUTO:
            promotion_s = min(PROMOTION_S, cold_s)
            pay = TwoTierStarts(promotion_s, cold_s, self.settings.standby_price).pay
            return promotion_s if pay else None
        return min(PROMOTION_S, cold_s)

    def _follow_settings(self) -> None:
        """Begin or end to keep standbys as the settings say, with the start times observed."""
        if self._given is not None:
            return
        if not self._wanted:
            if self._all is not None:
                self._all = None
                self._for_all.clear()
                self._replicas.assume_start_time(None)
            return
        if self._all is None:
            # It begins with all that is known of the load and of starts.
            state = self._replicas.state_dict()
            self._all = Autoscaler()
            self._all.load_state(state)
        promotion_s = self._promotion_s(self._all)
        self._replicas.assume_start_time(
            self._all.horizon_s if promotion_s is None else promotion_s
        )

    def _settings_for_all(self, settings: AutoscalerSettings) -> AutoscalerSettings:
        price = settings.standby_price if self._given is None else self._given.standby_price
        risk = self._replicas.risk if settings.risk is None else settings.risk
        return replace(settings, risk=standby_risk(risk, price))

    def _report_for_all(self, report: ReplicaReport) -> ReplicaReport:
        if report.settings is None or self._wanted != AUTO:
            return report
        made_from, made = self._for_all.get(report.replica_id, (None, report))
        if made_from is not report:
            made = replace(report, settings=self._settings_for_all(report.settings))
            self._for_all[report.replica_id] = report, made
        return made


class _LoadReports:
    """Leaves out the reports of standbys, which take no requests and say nothing of the load.

    The first report of a replica is kept, for its start time; so is whatever counts requests.
    """

    def __init__(self) -> None:
        #: What each replica had been offered at its latest report that was passed on.
        self._offered: dict[str, float] = {}
        #: The latest report of each standby that was left out.
        self._left_out: dict[str, ReplicaReport] = {}

    def of(self, reports: Iterable[ReplicaReport]) -> list[ReplicaReport]:
        reports = list(reports)
        if not self._left_out and not any(report.standby for report in reports):
            self._offered = {report.replica_id: report.offered_total for report in reports}
            return reports
        passed, offered, left_out = [], {}, {}
        for report in reports:
            name = report.replica_id
            before = self._offered.get(name)
            if report.standby and report.offered_total == before:
                left_out[name] = report
                offered[name] = before
                continue
            # What a promoted standby counts now did not come while it stood by.
            latest = self._left_out.get(name)
            if latest is not None:
                passed.append(latest)
            passed.append(report)
            offered[name] = report.offered_total
        self._offered, self._left_out = offered, left_out
        return passed


def _verb(count: int, verb: str) -> str:
    return f"{verb}s" if count == 1 else verb
