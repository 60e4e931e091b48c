"""A quick run of the comparison of computed with simulated percentiles."""

import json

import pytest
from click.testing import CliRunner

from benchmarks.paper.percentiles import main

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def report():
    result = CliRunner().invoke(main, ["--quick", "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_computed_percentiles_are_those_of_the_simulation(report):
    compared = report["comparisons"]
    assert len(compared) == 20
    # Simulations at a load of 0.9 are too short for that.
    sure = [row for row in compared if row["traffic_intensity"] == 0.1]
    assert len(sure) == 10
    for row in sure:
        for percentile in ("50", "95", "99"):
            error, deviation = (
                row[key][percentile] for key in ("percentile_errors", "standard_errors")
            )
            assert abs(error) < 5e-3 + 5 * deviation, (row["name"], percentile)
        assert row["power_error"] == pytest.approx(0, abs=0.01)
        full = row["full_probability_simulated"]
        assert row["full_probability"] == pytest.approx(full, abs=2e-3)


def test_percentiles_of_batch_times_that_vary_need_their_quantiles(report):
    rows = report["random_batch_times"]
    assert len(rows) == 4
    for row in rows:
        assert abs(row["varying_errors"]["95"]) < 0.02
        assert row["constant_errors"]["99"] < -0.015


def test_waiting_saves_power_where_the_sla_is_kept(report):
    saved = {(row["traffic_intensity"], row["response_time_ms"]): row for row in report["savings"]}
    assert [saved[0.3, target]["saved"] for target in (5, 10, 20)] == pytest.approx(
        [0.180, 0.281, 0.329], abs=2e-3
    )
    assert not saved[0.7, 5]["meets_sla"]
    assert saved[0.7, 20]["p99_ms"] <= 20
