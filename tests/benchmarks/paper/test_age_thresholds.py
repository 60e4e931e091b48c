"""The simulation of age thresholds against the exact evaluation, and a quick search."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.inputs import GOOGLENET_P4
from benchmarks.paper.age_thresholds import main, simulate
from policy.batching_policy import BatchingPolicy
from policy.response_time.evaluation import evaluate

pytestmark = pytest.mark.slow


def test_equal_thresholds_below_a_limit_are_a_control_limit_with_a_max_wait():
    rate_per_s = 0.3 * GOOGLENET_P4.capacity_per_s
    arrivals_ms = np.cumsum(np.random.default_rng(2).exponential(1e3 / rate_per_s, 1_000_000))
    thresholds_ms = np.where(np.arange(1, 32) < 5, 3.0, 0.0)
    tables = GOOGLENET_P4.latency_ms, GOOGLENET_P4.energy_mj
    late, power_w = simulate(arrivals_ms, *tables, thresholds_ms, 5.1)
    policy = BatchingPolicy.from_control_limit(5, 32, 3.0)
    expected = evaluate(GOOGLENET_P4, policy, rate_per_s)
    assert late == pytest.approx(1 - expected.service_level(5.1), rel=0.05)
    assert power_w == pytest.approx(expected.mean_power_w, rel=2e-3)


def test_a_quick_search_saves_power_with_no_more_requests_late():
    result = CliRunner().invoke(main, ["--quick", "--json"])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    assert len(rows) == 3
    for row in rows:
        assert row["thresholds_power_w"] <= row["power_w"]
        assert row["late_share"] < 0.02
        assert len(row["thresholds_ms"]) == 31
    assert rows[0]["saved"] > 0.005
