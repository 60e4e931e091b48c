"""In overload a replica answers in time nearly all that is possible, and refuses the rest."""

import numpy as np
import pytest

from autoscaler.simulator.arrivals import WithinSecond, poisson_counts
from autoscaler.simulator.autoscalers.fixed import FixedFleet
from autoscaler.simulator.autoscalers.sojourn import SojournAutoscaler
from autoscaler.simulator.scenario import Scenario
from autoscaler.simulator.simulation import simulate
from autoscaler.simulator.start_time import StartTime
from policy.batching_policy import BatchingPolicy
from policy.event_loop import EventLoopCosts
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.try_delays import TryDelays
from tests.support.profiles import GOOGLENET_P4

SIZES = np.arange(1, 33)
#: Batch latency in ms, the SLA's response time in ms, and the highest rate at which 99% are in time
#: with the best limit on the batch size.
DEVICES = {
    "in proportion": (0.4 + 7.8 * SIZES, 200.0, 118.0),
    "steep line": (20 + 3.0 * np.arange(1, 65), 150.0, 210.0),
    "constant": (np.full(32, 40.0), 100.0, 741.0),
    "steps of 8": (1 + 2.0 * np.ceil(SIZES / 8), 12.0, 2646.0),
    "GPU": (GOOGLENET_P4.latency_ms, 30.0, 2911.0),
    "GPU, tight SLA": (GOOGLENET_P4.latency_ms, 12.0, 2307.0),
}

#: The rate at which a fast model behind an event loop holds 99% in 20 ms.
EVENT_LOOP_POSSIBLE_PER_S = 9434.0


def overloaded(device: str, factor: float, seconds: int) -> tuple[Scenario, float]:
    latency_ms, response_time_ms, possible_per_s = DEVICES[device]
    counts = poisson_counts(factor * possible_per_s, seconds, np.random.default_rng(1))
    scenario = Scenario(
        Profile(device, "device", latency_ms),
        ServiceLevelObjective(response_time_ms, 99.0),
        counts.astype(np.float64),
        within_second=WithinSecond.UNIFORM,
    )
    return scenario, possible_per_s


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1.05, 1.5, 10.0])
@pytest.mark.parametrize("device", DEVICES)
def test_a_replica_in_overload_answers_in_time_what_is_possible(device: str, factor: float) -> None:
    scenario, possible_per_s = overloaded(device, factor, seconds=4)
    run = simulate(scenario, FixedFleet(1))
    assert run.in_time.sum() >= 0.95 * 4 * possible_per_s
    answered = run.offered.sum() - run.refused.sum()
    assert run.in_time.sum() >= 0.99 * answered  # hardly anything is answered late


def event_loop_overloaded(factor: float, batching: BatchingPolicy | None, retries: int) -> float:
    """Return the answers in time, of those possible, of a fast model behind a slow event loop."""
    event_loop = EventLoopCosts(request_ms=0.1, batch_ms=0.15, shares_cpu=False)
    fast = Profile("fast", "device", 0.02 + 0.001 * np.arange(1, 65), event_loop=event_loop)
    counts = poisson_counts(factor * EVENT_LOOP_POSSIBLE_PER_S, 3, np.random.default_rng(1))
    scenario = Scenario(
        fast,
        ServiceLevelObjective(20.0, 99.0),
        counts.astype(np.float64),
        within_second=WithinSecond.UNIFORM,
        delays=TryDelays(retries=retries),
        batching=batching,
    )
    run = simulate(scenario, FixedFleet(1))
    assert run.bottleneck == "event_loop"
    return float(run.in_time.sum()) / (3 * EVENT_LOOP_POSSIBLE_PER_S)


@pytest.mark.parametrize(("factor", "share"), [(1.05, 0.95), (1.5, 0.9), (4.0, 0.45)])
def test_an_overloaded_event_loop_answers_in_time_what_refusing_leaves_it_time_for(
    factor: float, share: float
) -> None:
    # A refusal costs a tenth. At 4 times the rate, refusals leave 0.7 of the time, and the queue's
    # swings take some of that.
    batching = BatchingPolicy.from_control_limit(64, 64)
    assert share <= event_loop_overloaded(factor, batching, retries=0) <= 1.05


@pytest.mark.slow
def test_in_overload_a_replica_spares_its_event_loop_small_batches() -> None:
    assert event_loop_overloaded(1.5, None, retries=0) >= 0.9


@pytest.mark.slow
def test_replicas_keep_answering_in_time_until_those_that_are_ordered_serve() -> None:
    scenario, possible_per_s = overloaded("in proportion", 3.5, seconds=150)
    counts = scenario.counts.copy()
    counts[:30] *= 0.2  # the step comes after half a minute
    scenario = Scenario(
        scenario.profile,
        scenario.objective,
        np.round(counts),
        within_second=WithinSecond.UNIFORM,
        start_time=StartTime(30.0),
        max_replicas=8,
    )
    run = simulate(scenario, SojournAutoscaler(max_replicas=8))
    assert run.in_time[32:58].sum() >= 0.95 * 26 * possible_per_s
    assert run.ready[-1] >= 4
    assert run.in_time[80:].sum() >= 0.99 * run.offered[80:].sum()
