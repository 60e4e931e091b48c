"""The bound's dynamic program against every schedule of a few requests."""

import json
import math
from itertools import combinations

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.paper.power_bounds import LOADS, TARGETS_MS, least_cost, main

LATENCY_MS = np.array([1.0, 1.4, 1.5])
ENERGY_MJ = np.array([2.0, 2.5, 3.5])


def cheapest_schedule(arrival_ms, free_ms, response_time_ms, late_cost_mj):
    """Return the least cost over all batches of any requests, in any order, and any drops."""
    waiting = tuple(range(len(arrival_ms)))

    def serve(left, free_ms):
        least = len(left) * late_cost_mj
        for size in range(1, min(len(left), LATENCY_MS.size) + 1):
            for batch in combinations(left, size):
                start_ms = max(free_ms, *(arrival_ms[i] for i in batch))
                end_ms = start_ms + LATENCY_MS[size - 1]
                late = sum(end_ms - arrival_ms[i] > response_time_ms for i in batch)
                cost = ENERGY_MJ[size - 1] + late * late_cost_mj
                rest = tuple(i for i in left if i not in batch)
                least = min(least, cost + serve(rest, end_ms))
        return least

    return serve(waiting, free_ms)


@pytest.mark.parametrize("late_cost_mj", [0.3, 1.0, 5.0])
@pytest.mark.parametrize("response_time_ms", [1.6, 2.5])
def test_no_schedule_of_known_arrivals_costs_less(late_cost_mj, response_time_ms):
    generator = np.random.default_rng(0)
    for rate_per_ms in (0.5, 2.0, 2.0, 6.0):
        arrival_ms = np.cumsum(generator.exponential(1 / rate_per_ms, 5))
        # Without compilation, which takes longer than the test.
        found = least_cost.py_func(
            arrival_ms, LATENCY_MS, ENERGY_MJ, response_time_ms, late_cost_mj
        )
        best = cheapest_schedule(arrival_ms, -math.inf, response_time_ms, late_cost_mj)
        assert found == pytest.approx(best, rel=1e-12)


@pytest.mark.slow
def test_no_policy_needs_less_power_than_its_bound_in_a_quick_run():
    result = CliRunner().invoke(main, ["--quick", "--json"])
    assert result.exit_code == 0, result.output
    rows = {
        (row["load"], row["response_time_ms"]): row for row in json.loads(result.stdout)["rows"]
    }
    assert set(rows) == {(load, target) for load in LOADS for target in TARGETS_MS}
    kept = {key: row for key, row in rows.items() if row["power_w"] is not None}
    assert len(kept) == 10
    for row in kept.values():
        assert row["bound_w"] <= row["power_w"] + 3 * row["standard_error_w"]
        if row["response_time_ms"] == 20:
            assert row["bound_w"] > 0.97 * row["power_w"]
    assert rows[0.9, 5]["bound_w"] is None  # nobody can keep it
