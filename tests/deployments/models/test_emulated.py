import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.models import emulated
from deployments.models.emulated import Emulated
from policy.errors import InvalidInputError
from tests.support.clocks.virtual_clock import VirtualClock

# GoogLeNet on a Tesla P4, from Xu et al.
P4 = {
    "model": "googlenet",
    "device": "tesla-p4",
    "max_batch_size": 32,
    "latency_ms": {"per_request": 0.3051, "fixed": 1.052},
    "energy_mj": {"per_request": 19.90, "fixed": 19.60},
}


def batch_ms(model, batch_size, clock):
    batch = model.example(batch_size)
    started_s = clock.perf_counter()
    model.forward(batch)
    return (clock.perf_counter() - started_s) * 1e3


@pytest.mark.parametrize(
    ("batch_size", "late_s", "share"), [(1, 0.0, 1.0), (8, 50e-6, 1.0), (32, 0.0, 0.5)]
)
def test_a_batch_takes_the_profiles_time_and_the_lateness_of_one_sleep(
    monkeypatch, batch_size, late_s, share
):
    clock = VirtualClock(late_s, share)
    monkeypatch.setattr(emulated, "time", clock)
    model = Emulated(P4)
    expected_ms = model.profile().latency_ms[batch_size - 1] + 1e3 * late_s
    assert batch_ms(model, batch_size, clock) == pytest.approx(expected_ms, abs=1e-5)
    if share == 1.0:
        assert clock.sleeps == 1, "the wait must not spin"


@settings(max_examples=20)
@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=32))
def test_each_row_is_echoed(values):
    model = Emulated({"latency_ms": [1e-3] * 32})
    batch = np.array(values, np.float32).reshape(-1, 1)
    output = model.forward({"input": batch})["output"]
    np.testing.assert_array_equal(output, batch)
    assert not np.shares_memory(output, batch)


def test_scale_multiplies_the_latency_but_not_the_energy(monkeypatch):
    clock = VirtualClock()
    monkeypatch.setattr(emulated, "time", clock)
    model, slower = Emulated(P4), Emulated(P4, scale=10)
    np.testing.assert_allclose(slower.profile().latency_ms, 10 * model.profile().latency_ms)
    np.testing.assert_array_equal(slower.profile().energy_mj, model.profile().energy_mj)
    assert batch_ms(slower, 1, clock) == pytest.approx(10 * model.profile().latency_ms[0])


@pytest.mark.parametrize("scale", [0, float("nan"), float("inf"), "2", True])
def test_a_wrong_scale_is_rejected(scale):
    with pytest.raises(InvalidInputError, match="scale must be a finite number above 0"):
        Emulated(P4, scale=scale)
