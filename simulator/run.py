"""A run: one autoscaler on one scenario, second by second."""

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from autoscaler.reports import ReplicaReport
from policy.errors import InvalidInputError
from policy.load_lateness import LoadLatenessCurve
from simulator.arrivals import ArrivalTimes, scaled_counts
from simulator.engines.compiled import CompiledEngine
from simulator.engines.counters import FleetCounters, bin_edges_ms
from simulator.engines.interface import Answered, Engine
from simulator.engines.live import LiveEngine
from simulator.fleet import Fleet, Replica
from simulator.results import Run
from simulator.scaling import FleetView, ScalingPolicy
from simulator.scenario import Scenario

__all__ = ["Scenario", "Simulation", "simulate"]

EngineName = Literal["compiled", "live"]
ENGINES = {"compiled": CompiledEngine, "live": LiveEngine}
#: How often `progress` is called in a run.
PROGRESS_CALLS = 200

FloatArray = NDArray[np.float64]


def simulate(
    scenario: Scenario,
    autoscaler: ScalingPolicy,
    *,
    progress: Callable[[int], None] | None = None,
    engine: EngineName = "compiled",
) -> Run:
    """Run an autoscaler on a scenario.

    Parameters
    ----------
    scenario : Scenario
    autoscaler : ScalingPolicy
        A new one: it remembers what it has seen. If it has an attribute ``forecast_per_s``, that is
        read after each decision.
    progress : callable, optional
        Called now and then with the number of seconds simulated, at last with all.
    engine : {"compiled", "live"}
        See `simulator.engines.interface`; both give the same.

    Returns
    -------
    Run
        The same for the same scenario, seed and autoscaler.

    Raises
    ------
    InvalidInputError
        There is no such engine, or the autoscaler answered no number.
    InfeasibleError
        The scenario asks for the policy table of its SLA, and there is none.
    """
    return Simulation(scenario, autoscaler, engine=engine).run(progress)


class Simulation:
    """A run and what it is made of; `simulate` is all that most need.

    Parameters
    ----------
    scenario, autoscaler, engine
        As for `simulate`.
    keeps_log : bool
        Whether each answered request is remembered, for `log`.
    """

    def __init__(
        self,
        scenario: Scenario,
        autoscaler: ScalingPolicy,
        *,
        engine: EngineName = "compiled",
        keeps_log: bool = False,
    ) -> None:
        if engine not in ENGINES:
            raise InvalidInputError(f"engine: must be one of {', '.join(ENGINES)}, not {engine!r}")
        self._scenario = scenario
        self._autoscaler = autoscaler
        # A stream of random numbers for each purpose: however many a fleet draws for starts, the
        # arrivals stay the same.
        streams = np.random.SeedSequence(scenario.seed).spawn(5)
        rounding, arrivals, routing, starts, failures = map(np.random.default_rng, streams)
        self._counts = scaled_counts(scenario.counts, scenario.scale, rounding)
        self._arrivals = ArrivalTimes(self._counts, scenario.within_second, arrivals)
        self._tally = FleetCounters.of(scenario.seconds)
        self._engine: Engine = ENGINES[engine](
            scenario.replica_model(), self._tally, int(routing.integers(2**63)), keeps_log
        )
        self._fleet = Fleet(
            self._engine,
            scenario.replicas,
            scenario.start_time,
            scenario.failures,
            starts,
            failures,
        )

    def run(self, progress: Callable[[int], None] | None = None) -> Run:
        """Run it, once."""
        scenario, fleet, seconds = self._scenario, self._fleet, self._scenario.seconds
        ordered, ready, forecast = (np.empty(seconds) for _ in range(3))
        refused = 0
        step = max(1, seconds // PROGRESS_CALLS)
        for second in range(seconds):
            self._engine.offer(self._arrivals.of_second(second))
            ordered[second], ready[second] = fleet.run_until(second + 1.0)
            view = FleetView(
                now_s=second + 1.0,
                ordered=fleet.ordered,
                ready=len(fleet.ready),
                offered=float(self._counts[second]),
                refused=float(self._engine.refused - refused),
                ongoing=self._engine.take_ongoing_s(),
                start_times_s=np.array(fleet.start_times_s),
                reports=self._reports,
            )
            refused = self._engine.refused
            wanted = self._wanted(self._autoscaler.replicas(view))
            forecast[second] = getattr(self._autoscaler, "forecast_per_s", math.nan)
            fleet.scale_to(min(max(wanted, scenario.min_replicas), scenario.max_replicas))
            if progress is not None and ((second + 1) % step == 0 or second + 1 == seconds):
                progress(second + 1)
        paid_replica_s = fleet.finish()
        tally = self._tally
        has_energy = scenario.profile.energy_mj is not None
        return Run(
            name=self._autoscaler.name,
            objective=scenario.objective,
            offered=self._counts.astype(np.float64),
            in_time=tally.in_time,
            refused=tally.refused,
            ordered=ordered,
            ready=ready,
            paid_replica_s=paid_replica_s,
            forecast_per_s=forecast,
            energy_j=tally.energy_j if has_energy else np.full(seconds, math.nan),
            histogram=tally.histogram,
            bin_edges_ms=bin_edges_ms(),
        )

    def log(self) -> list[Answered]:
        """Give each request answered, by the time it was sent; empty if no log is kept."""
        return self._engine.log()

    def _wanted(self, answer: object) -> int:
        if isinstance(answer, int | np.integer) and not isinstance(answer, bool):
            return int(answer)
        raise InvalidInputError(
            f"autoscaler {self._autoscaler.name}: must answer a whole number, not {answer!r}"
        )

    def _reports(self) -> list[ReplicaReport]:
        curve = self._scenario.load_lateness_curve()
        now_s = self._fleet.now_s
        return [self._report(replica, now_s, curve) for replica in self._fleet.ready]

    def _report(
        self, replica: Replica, now_s: float, curve: LoadLatenessCurve | None
    ) -> ReplicaReport:
        """Give what a live replica would report, as its service and its adapter put it together."""
        scenario = self._scenario
        counted = self._engine.counters(replica.place)
        unreachable = len(LoadLatenessCurve.MULTIPLES) * (1.0,)
        return ReplicaReport(
            replica_id=replica.name,
            time_s=now_s,
            offered_total=counted.offered,
            refused_total=counted.refused,
            completed_total=counted.completed,
            queue_length=counted.waiting,
            full_batch_size=scenario.profile.max_batch_size,
            full_batch_ms=float(scenario.profile.latency_ms[-1]),
            sla_response_time_ms=scenario.objective.response_time_ms,
            sla_percentile=scenario.objective.percentile,
            start_time_s=replica.start_time_s,
            settings=scenario.autoscaler_settings,
            sla_rate_per_s=curve.sla_rate_per_s if curve else 0.0,
            late_shares=curve.late_shares if curve else unreachable,
            answered_total=counted.completed,
            late_total=counted.late,
        )
