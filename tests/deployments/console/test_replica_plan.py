import json

import pytest

from deployments.console.replica_plan import plan
from policy.profile import Profile
from policy.try_delays import RETRIES, TryDelays
from sojourn.cli import main

PROFILE = Profile.from_dict(
    {
        "max_batch_size": 8,
        "latency_ms": {"per_request": 3, "fixed": 10},
        "energy_mj": {"per_request": 200, "fixed": 200},
    }
)


DELAYS = TryDelays(retries=RETRIES)


def scenario(**more):
    return {"response_time_ms": 150, "percentile": 99, "arrival_rate_per_s": 400, **more}


@pytest.mark.slow
@pytest.mark.parametrize(
    "prices",
    [{}, {"energy_price": 9, "replica_price": 0.01}],
    ids=["least replicas", "least cost"],
)
def test_a_plan_is_that_of_the_command(capsys, tmp_path, prices):
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(PROFILE.to_dict()))
    options = [
        f"--{name.removesuffix('_per_s').replace('_', '-')}={value}"
        for name, value in scenario(**prices).items()
    ]
    assert main(["plan", f"--profile={path}", "--json", *options]) == 0
    said = json.loads(capsys.readouterr().out)
    found = plan(PROFILE, DELAYS, **scenario(**prices))
    shared = found.keys() & said.keys()
    assert {"replicas", "predicted_percentile_ms", "mean_power_w", "control_limit"} <= shared
    assert ("cost_per_h" in shared) == bool(prices)
    assert json.loads(json.dumps({key: found[key] for key in shared})) == {
        key: said[key] for key in shared
    }


def test_a_burst_is_sized_for_and_the_load_itself_is_predicted():
    def planned(**more):
        return plan(PROFILE, DELAYS, **scenario(**more, energy_weight=0))

    calm, bursty, doubled = planned(), planned(burst_factor=2), planned(arrival_rate_per_s=800)
    assert calm["replicas"] < bursty["replicas"] == doubled["replicas"]
    assert bursty["mean_power_w"] < doubled["mean_power_w"]
    assert bursty["predicted_percentile_ms"] < calm["predicted_percentile_ms"]
    assert bursty["meets_sla"]


@pytest.mark.slow
def test_an_energy_weight_plans_with_the_policy_of_that_weight():
    loose = {"response_time_ms": 2000, "arrival_rate_per_s": 200}
    fast = plan(PROFILE, DELAYS, **scenario(**loose, energy_weight=0))
    thrifty = plan(PROFILE, DELAYS, **scenario(**loose, energy_weight=2))
    assert fast["mean_power_w"] > thrifty["mean_power_w"]
    assert fast["predicted_percentile_ms"] < thrifty["predicted_percentile_ms"]
    assert thrifty["control_limit"] > fast["control_limit"]
