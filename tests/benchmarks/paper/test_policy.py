"""A quick run of the comparison of the policy solvers."""

import json

import pytest
from click.testing import CliRunner

pytest.importorskip("quantecon")


@pytest.mark.slow
def test_all_solvers_find_the_same_policy_cost():
    from benchmarks.paper.policy import main

    result = CliRunner().invoke(main, ["--quick", "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    rows = report["solvers"]
    assert [row["solver"] for row in rows].count("exact") == len({row["problem"] for row in rows})
    assert {row["solver"] for row in rows} > {"exact", "policy iteration", "QuantEcon DiscreteDP"}
    # The paper's sweeps end when the cost is known to 0.01.
    for row in rows:
        exact = row["solver"] == "exact"
        assert row["relative_error"] == pytest.approx(0, abs=1e-12 if exact else 1e-5)
    assert rows[0]["average_cost"] == pytest.approx(66.13385, abs=5e-6)
    assert report["look_up_us"] > 0
