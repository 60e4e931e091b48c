import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.errors import InfeasibleError, InvalidInputError
from policy.profile import Profile
from tests.support.profiles import GOOGLENET_P4_FILE

LINE = json.loads(GOOGLENET_P4_FILE.read_text())


def test_the_line_form_is_the_table_form():
    profile = Profile.from_dict(LINE)
    assert profile.latency_ms[0] == pytest.approx(1.3571)
    assert profile.latency_ms[31] == pytest.approx(10.8152)
    again = Profile.from_dict(profile.to_dict())
    np.testing.assert_array_equal(again.latency_ms, profile.latency_ms)
    np.testing.assert_array_equal(again.energy_mj, profile.energy_mj)


def test_a_saved_profile_is_the_same_when_loaded(tmp_path):
    content = {
        "model": "m",
        "device": "d",
        "max_batch_size": 2,
        "latency_ms": [1.0, 1.5],
        "idle_power_w": 1.0,
        "energy_mj": [2.0, 3.0],
        "cpus": 1.5,
        "latency_quantiles": {"10": 0.95, "50": 1.0, "99": [1.4, 1.3]},
        "event_loop": {"request_ms": 0.1, "batch_ms": 0.2, "shares_cpu": False},
        "measured": {"date": "today", "n": [1, 2]},
    }
    Profile.from_dict(content).save(tmp_path / "profile.json")
    assert Profile.load(tmp_path / "profile.json").to_dict() == content
    assert set(Profile.from_dict({"latency_ms": [1.0]}).to_dict()) == {
        "model",
        "device",
        "max_batch_size",
        "latency_ms",
    }


@given(steps=st.lists(st.floats(0, 3), min_size=1, max_size=20))
def test_the_capacity_is_that_of_the_best_batch_size(steps):
    latency_ms = 0.5 + np.cumsum(steps)
    profile = Profile("m", "d", latency_ms)
    throughputs = 1e3 * np.arange(1, latency_ms.size + 1) / latency_ms
    assert profile.capacity_per_s == pytest.approx(throughputs.max())
    assert throughputs[profile.best_batch_size - 1] == pytest.approx(throughputs.max())


def test_the_largest_batch_of_the_highest_throughput_is_the_best():
    assert Profile("m", "d", np.array([1.0, 2.0, 3.0, 9.0])).best_batch_size == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_batch_size": True}, "max_batch_size must be a whole number"),
        ({"latency_ms": None}, "latency_ms is missing"),
        ({"latency_ms": {"per_request": 1, "fixed": 1, "x": 1}}, "keys per_request and fixed"),
        ({"latency_ms": {"per_request": 10**400, "fixed": 1}}, "finite numbers, not 1000"),
        ({"max_batch_size": 10_000}, "at most 2048, not 10000"),  # took 12 s and 2 GB
        ({"latency_ms": {"per_request": 0, "fixed": 1e-300}}, "1e-09 to 1e\\+12"),  # overflowed
        ({"cpus": 0}, "cpus: must be above 0"),
        ({"energy_mj": [1.0]}, "energy_mj has 1 entries, max_batch_size is 32"),
        ({"energy_mj": {"per_request": -1, "fixed": 1}}, "must not be negative"),
    ],
)
def test_a_malformed_profile_is_refused(change, message):
    with pytest.raises(InvalidInputError, match=message):
        Profile.from_dict({**LINE, **change})


def test_an_error_names_the_file(tmp_path):
    with pytest.raises(InvalidInputError, match=r"none\.json: No such file"):
        Profile.load(tmp_path / "none.json")
    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps({"latency_ms": [2, 1]}))
    with pytest.raises(InvalidInputError, match=r"bad\.json: .* falls at 2"):
        Profile.load(bad)


def test_only_a_rate_below_the_capacity_can_be_served():
    profile = Profile("m", "d", np.array([2.0]))
    assert profile.arrivals_per_ms(499) == pytest.approx(0.499)
    with pytest.raises(InfeasibleError, match="500 per second is not below the 500 per second"):
        profile.arrivals_per_ms(500)
    with pytest.raises(InvalidInputError, match="arrival rate: must be above 0"):
        profile.arrivals_per_ms(float("nan"))


def test_the_idle_power_is_read_written_and_checked():
    content = {"max_batch_size": 2, "latency_ms": [1.0, 2.0], "energy_mj": [10.0, 18.0]}
    profile = Profile.from_dict({**content, "idle_power_w": 8})
    assert profile.energy_mj_for_weight(1.0).tolist() == [2.0, 2.0]
    for idle_power_w in (-1, 9.1, float("nan"), "much"):
        with pytest.raises(InvalidInputError, match="idle_power_w"):
            Profile.from_dict({**content, "idle_power_w": idle_power_w})
    with pytest.raises(InvalidInputError, match="needs energy_mj"):
        Profile("a", "b", [1.0], idle_power_w=1.0)
