"""Simulate one autoscaler on one scenario, second by second."""

import math
from collections import deque
from functools import cached_property
from statistics import fmean

import numpy as np

from autoscaler.reports import ReplicaReport, curve_fields, delays_to_floats
from autoscaler.simulator.arrivals import ArrivalTimes, scaled_counts
from autoscaler.simulator.engines.compiled import CompiledEngine
from autoscaler.simulator.engines.interface import AnsweredRequest, FleetCounters, bin_edges_ms
from autoscaler.simulator.fleet import Fleet, Replica
from autoscaler.simulator.results import Run
from autoscaler.simulator.scaling import FleetView, ScalingPolicy
from autoscaler.simulator.scenario import Scenario
from policy.errors import InfeasibleError, InvalidInputError
from policy.load_lateness import LoadLatenessCurve
from policy.tables.power import POWER_TICKS


def simulate(scenario: Scenario, autoscaler: ScalingPolicy) -> Run:
    """Simulate an autoscaler on a scenario.

    Parameters
    ----------
    scenario : Scenario
        The load, the replicas and the balancer.
    autoscaler : ScalingPolicy
        A new one, since it remembers what it has seen. Its attributes ``forecast_per_s`` and
        ``standbys``, if it has them, are read after each decision.

    Returns
    -------
    Run
        The same for the same scenario, seed and autoscaler.

    Raises
    ------
    InvalidInputError
        The autoscaler returned something other than an integer.
    InfeasibleError
        The scenario needs the policy table of its SLA, and no policy meets that SLA.
    """
    return Simulation(scenario, autoscaler).run()


class Simulation:
    """A simulation with an optional log of its requests; see `simulate`."""

    def __init__(
        self,
        scenario: Scenario,
        autoscaler: ScalingPolicy,
        *,
        log_requests: bool = False,
    ) -> None:
        self._scenario = scenario
        self._autoscaler = autoscaler
        # Each purpose has its own random stream, so the arrivals do not depend on the number of
        # start times.
        streams = np.random.SeedSequence(scenario.seed).spawn(6)
        rounding, arrivals, routing, starts, failures, batches = map(np.random.default_rng, streams)
        self._counts = scaled_counts(scenario.counts, 1.0, rounding)
        self._arrivals = ArrivalTimes(self._counts, scenario.within_second, arrivals)
        self._counters = FleetCounters.zeros(scenario.seconds)
        self._services, self._multiple = scenario.services(), 1.0
        self._engine = CompiledEngine(
            scenario,
            self._counters,
            int(routing.integers(2**63)),
            int(batches.integers(2**63)),
            log_requests,
        )
        self._arrival_rates_per_s: deque[float] = deque(maxlen=POWER_TICKS)
        self._fleet = Fleet(
            self._engine,
            scenario.replicas,
            scenario.start_time,
            scenario.failures,
            starts,
            failures,
            scenario.standby_start_time,
        )

    def run(self) -> Run:
        """Run the simulation and return its result; call it once."""
        scenario, fleet, seconds = self._scenario, self._fleet, self._scenario.seconds
        ordered, ready, forecast = (np.empty(seconds) for _ in range(3))
        idle_power_w = scenario.profile.idle_power_w or 0.0
        for second in range(seconds):
            self._engine.offer(self._arrivals.of_second(second))
            ordered[second], ready[second], existing = fleet.run_until(second + 1.0)
            self._counters.energy_j[second] += idle_power_w * existing
            view = FleetView(
                now_s=second + 1.0,
                ordered=fleet.ordered,
                ready=len(fleet.ready),
                standbys=fleet.standbys,
                offered=float(self._counts[second]),
                ongoing=self._engine.take_ongoing_s(),
                reports=self._reports,
            )
            wanted = self._checked(self._autoscaler.replicas(view))
            forecast[second] = getattr(self._autoscaler, "forecast_per_s", math.nan)
            replicas = min(max(wanted, scenario.min_replicas), scenario.max_replicas)
            fleet.scale_to(replicas, getattr(self._autoscaler, "standbys", 0))
            self._follow_power(second + 1.0)
        paid_replica_s = fleet.finish()
        counters = self._counters
        batches, devices_busy_s, loops_busy_s = self._engine.work()
        serial_event_loop_s, event_loop = 0.0, scenario.profile.event_loop
        if event_loop is not None and event_loop.shares_cpu:
            answered = float(counters.histogram.sum())
            serial_event_loop_s = 1e-3 * (
                event_loop.request_ms * answered + event_loop.batch_ms * batches
            )
        has_energy = scenario.profile.energy_mj is not None
        return Run(
            name=self._autoscaler.name,
            objective=scenario.objective,
            offered=self._counts.astype(np.float64),
            in_time=counters.in_time,
            refused=counters.refused,
            ordered=ordered,
            ready=ready,
            paid_replica_s=paid_replica_s,
            forecast_per_s=forecast,
            energy_j=counters.energy_j if has_energy else np.full(seconds, math.nan),
            histogram=counters.histogram,
            bin_edges_ms=bin_edges_ms(),
            device_busy_s=devices_busy_s - serial_event_loop_s,
            event_loop_busy_s=loops_busy_s + serial_event_loop_s,
        )

    def _follow_power(self, now_s: float) -> None:
        """Choose the multiple of the SLA whose power is within the ceiling, for all replicas."""
        limit_w, ready = self._scenario.power_limit_w, self._fleet.ready
        if limit_w is None or not ready:
            return
        slots = [replica.slot for replica in ready]
        self._arrival_rates_per_s.append(self._engine.arrival_rate_per_s(slots, now_s))
        rate_per_s = fmean(self._arrival_rates_per_s)
        share_w = limit_w / self._fleet.ordered
        multiple = self._scenario.power_table.multiple_within(rate_per_s, share_w)
        if multiple != self._multiple:
            self._multiple = multiple
            self._engine.use(multiple, now_s)

    def request_log(self) -> list[AnsweredRequest]:
        """Return the answered requests by the time they were sent; empty without a log."""
        return self._engine.request_log()

    def _checked(self, answer: object) -> int:
        if isinstance(answer, int | np.integer) and not isinstance(answer, bool):
            return int(answer)
        raise InvalidInputError(
            f"autoscaler {self._autoscaler.name}: must return a whole number, not {answer!r}"
        )

    @cached_property
    def _curve(self) -> LoadLatenessCurve | None:
        """The curve that replicas report; None if no arrival rate meets the SLA."""
        try:
            return self._scenario.load_lateness_curve
        except InfeasibleError:
            return None

    @cached_property
    def _powers(self) -> tuple[float, ...]:
        limited = self._scenario.power_limit_w is not None
        return self._scenario.power_table.to_floats() if limited else ()

    def _reports(self) -> list[ReplicaReport]:
        now_s = self._fleet.now_s
        return [self._report(replica, now_s) for replica in self._fleet.ready]

    def _report(self, replica: Replica, now_s: float) -> ReplicaReport:
        """Build the report that a live replica would send in this state."""
        scenario, limits = self._scenario, self._services[self._multiple].limits
        counted = self._engine.counters(replica.slot)
        return ReplicaReport(
            replica_id=replica.name,
            time_s=now_s,
            offered_total=counted.offered,
            refused_total=counted.refused,
            queue_length=counted.waiting,
            full_batch_size=limits.max_batch_size,
            full_batch_ms=float(limits.latency_ms[-1]),
            sla_response_time_ms=scenario.objective.response_time_ms,
            sla_percentile=scenario.objective.percentile,
            start_time_s=replica.start_time_s,
            settings=scenario.autoscaler_settings,
            answered_total=counted.completed + counted.expired,
            late_total=counted.late,
            counted_s=now_s - replica.ready_s,
            power_limit_w=scenario.power_limit_w or 0.0,
            powers=self._powers,
            **(curve_fields(self._curve, out_of_reach=True) | delays_to_floats(scenario.delays)),
        )
