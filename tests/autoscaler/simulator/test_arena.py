from dataclasses import replace

import numpy as np
import pytest

from autoscaler.simulator.arena import MAX_TIMES_PEAK, ORACLE_CHOICE, Arena, Load, Outcome, score
from autoscaler.simulator.autoscalers.registry import choose
from autoscaler.simulator.fleet import Failures
from autoscaler.simulator.scenario import Scenario
from autoscaler.simulator.start_time import StartTime
from policy.batching_policy import BatchingPolicy
from policy.errors import InvalidInputError
from policy.objective import ServiceLevelObjective
from policy.profile import Profile

PROFILE = Profile("model", "device", np.linspace(20.0, 60.0, 8), np.linspace(5.0, 9.0, 8))
COUNTS = np.rint(300 + 150 * np.sin(np.arange(600) / 90))


def scenario(counts=COUNTS, **options) -> Scenario:
    return Scenario(
        PROFILE,
        ServiceLevelObjective(200, 99),
        counts,
        batching=BatchingPolicy.from_control_limit(1, 8),
        **{"start_time": StartTime(10.0), **options},
    )


def outcome(windows: str, replica_seconds: float = 100.0) -> Outcome:
    return Outcome("a", "A", windows, 1.0, replica_seconds, 50.0, 0.0)


def test_only_windows_that_the_oracle_holds_and_that_have_requests_count() -> None:
    found = score(outcome("1100-1", 150.0), outcome("1010-1"), bound_s=75.0)
    assert found.held == pytest.approx(2 / 3)
    assert (found.over_oracle, found.over_bound) == (1.5, 2.0)
    assert found.energy_over_oracle == 1.0


def test_the_interval_contains_the_share_and_is_a_point_if_all_are_held() -> None:
    oracle = outcome("1" * 1440)
    assert score(oracle, oracle, 100.0).interval == (1.0, 1.0)
    scattered = score(outcome(("1" * 9 + "0") * 144), oracle, 100.0)
    grouped = score(outcome("0" * 144 + "1" * 1296), oracle, 100.0)
    for found in (scattered, grouped):
        assert found.interval[0] <= found.held == 0.9 <= found.interval[1]
    width = [high - low for low, high in (scattered.interval, grouped.interval)]
    assert width[0] < 0.2 * width[1]


@pytest.mark.slow
def test_the_oracle_has_constant_starts_that_do_not_fail() -> None:
    plain = Load("plain", scenario()).measure(ORACLE_CHOICE)
    drawn = scenario(start_time=StartTime(10.0, 0.5), failures=Failures(failed_start_share=0.5))
    assert Load("drawn", drawn).measure(ORACLE_CHOICE) == plain
    assert set(plain.windows) == {"1"}


def test_a_load_begins_with_the_oracles_fleet_and_is_bounded_by_its_peak() -> None:
    load = Load("load", scenario())
    assert load.scenario.max_replicas % MAX_TIMES_PEAK == 0
    assert 1 < load.scenario.replicas < load.scenario.max_replicas / MAX_TIMES_PEAK
    assert load.bound_replica_seconds <= load.measure(ORACLE_CHOICE).replica_seconds


def test_the_busiest_part_has_the_most_requests() -> None:
    counts = np.repeat([100.0, 400.0, 200.0], 100)
    load = Load("load", scenario(counts))
    part = load.busiest_part(100)
    assert part.scenario.counts.tolist() == [400.0] * 100
    assert load.busiest_part(300) is load


def test_each_pair_is_measured_once_and_what_is_known_not_at_all() -> None:
    load = Load("load", scenario(COUNTS[:120]))
    (peak,) = choose("peak")
    store = {("load", "oracle"): outcome("11")}
    told = []
    with Arena([load], store=store) as arena:
        arena.measure(
            [(load, peak), (load, ORACLE_CHOICE), (load, peak)], lambda *t: told.append(t)
        )
        assert arena.score(load, peak).outcome == store["load", "peak"]
    assert told == [("Peak of the minute on load", 1.0)]
    assert store["load", "oracle"] == outcome("11")


@pytest.mark.slow
def test_processes_find_what_one_process_finds() -> None:
    loads = [Load(name, scenario(COUNTS[:120] + more)) for name, more in (("a", 0.0), ("b", 50.0))]
    choices = choose("peak,knative")
    stores: list[dict[tuple[str, str], Outcome]] = [{}, {}]
    for workers, store in zip((1, 2), stores, strict=True):
        with Arena(loads, workers, store) as arena:
            arena.measure((load, choice) for load in loads for choice in choices)
    assert stores[0] == stores[1]
    assert len(stores[0]) == 4


def test_counts_must_be_whole_and_names_differ() -> None:
    with pytest.raises(InvalidInputError, match="whole numbers"):
        Load("load", scenario(COUNTS + 0.5))
    with pytest.raises(InvalidInputError, match="whole numbers"):
        Load("load", replace(scenario(), scale=2.0))
    load = Load("load", scenario(COUNTS[:60]))
    with pytest.raises(InvalidInputError, match="names must differ"):
        Arena([load, load])
