import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deployments.errors import StartError
from deployments.models import emulated
from deployments.models.base import Model, TensorSpec
from deployments.models.emulated import Emulated
from deployments.profiling import measure as profiling
from deployments.profiling.measure import (
    LINE_TOLERANCE,
    MAX_RATIO,
    default_batch_sizes,
    fit_quantiles,
    fit_table,
    measure_profile,
)
from policy.errors import InvalidInputError
from policy.profile import Profile
from tests.support.clocks.virtual_clock import VirtualClock

LINE = {"max_batch_size": 4, "latency_ms": {"per_request": 0.5, "fixed": 1.0}}
grids = st.integers(1, 64).map(default_batch_sizes)


@pytest.fixture
def clock(monkeypatch):
    made = VirtualClock()
    monkeypatch.setattr(profiling, "time", made)
    monkeypatch.setattr(emulated, "time", made)
    return made


class CoarseCounter:
    """A meter whose counter changes only every `period_s`, as that of a GPU does."""

    source, is_shared = "coarse counter", False

    def __init__(self, meter, clock, period_s):
        self._meter, self._clock, self._period_s = meter, clock, period_s
        self._number, self._read_mj = -1, 0.0

    def read_mj(self):
        number = self._clock.perf_counter() // self._period_s
        if number > self._number:
            self._number, self._read_mj = number, self._meter.read_mj()
        return self._read_mj


def measure(model, **options):
    defaults = {"model_name": "m", "device": "cpu", "max_batch_size": 4, "repeats": 5}
    return measure_profile(model, **(defaults | options))


@given(st.integers(1, 2000))
def test_the_default_grid_goes_from_one_to_the_largest_in_small_steps(max_batch_size):
    grid = default_batch_sizes(max_batch_size)
    assert (grid[0], grid[-1]) == (1, max_batch_size)
    assert all(
        1 <= after - before <= max(1, 0.34 * before + 1)
        for before, after in itertools.pairwise(grid)
    )
    assert len(grid) <= 3 * max_batch_size.bit_length()


@given(
    grids,
    st.floats(0, 100).map(lambda value: round(value, 3)),
    st.floats(0.01, 100).map(lambda value: round(value, 3)),
)
def test_a_line_is_recovered(sizes, per_request, fixed):
    values = [fixed + per_request * size for size in sizes]
    table, description = fit_table(sizes, values, sizes[-1])
    every_size = np.arange(1, sizes[-1] + 1)
    assert description["form"] == "line"
    np.testing.assert_allclose(table, fixed + per_request * every_size, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        table, description["fixed"] + description["per_request"] * every_size, atol=1e-6
    )


@given(grids, st.data())
def test_a_fit_never_decreases_and_stays_within_the_measured_values(sizes, data):
    values = data.draw(
        st.lists(st.floats(0.01, 1e4), min_size=len(sizes), max_size=len(sizes)), label="values"
    )
    table, _ = fit_table(sizes, values, sizes[-1])
    assert table.shape == (sizes[-1],)
    assert np.all(np.diff(table) >= 0)
    slack = 1 + LINE_TOLERANCE
    assert min(values) / slack - 1e-6 <= table[0] <= table[-1] <= max(values) * slack + 1e-6
    Profile("m", "d", table)


@given(grids, st.data())
def test_a_non_decreasing_table_is_kept(sizes, data):
    values = sorted(
        data.draw(st.lists(st.floats(0.01, 1e4), min_size=len(sizes), max_size=len(sizes)))
    )
    table, description = fit_table(sizes, values, sizes[-1])
    error = np.max(np.abs(table[np.array(sizes) - 1] - values) / values)
    assert error <= (LINE_TOLERANCE + 1e-4 if description["form"] == "line" else 1e-4)
    assert description["max_relative_error"] <= LINE_TOLERANCE


def test_zero_energies_of_a_coarse_counter_can_be_fitted():
    table, _ = fit_table([1, 2, 4], [0.0, 0.0, 8.0], 4)
    np.testing.assert_allclose(table, [0, 0, 4, 8])
    table, _ = fit_table([1, 2, 4], [0.0, 0.0, 0.0], 4)
    np.testing.assert_array_equal(table, np.zeros(4))


@pytest.mark.usefixtures("clock")
def test_measuring_an_emulated_device_returns_its_profile():
    model = Emulated(LINE | {"energy_mj": [1.0, 2.0, 4.0, 8.0], "idle_power_w": 0.5})
    profile = measure(model, repeats=20, energy_meter=model.energy_meter())
    stated = model.profile()
    rows = profile.measured["batch_sizes"]
    for row, stated_ms in zip(rows, stated.latency_ms, strict=True):
        quantiles_ms = [row[name] for name in profiling.QUANTILES]
        np.testing.assert_allclose(quantiles_ms, stated_ms, atol=1e-6)
    np.testing.assert_allclose(profile.latency_ms, stated.latency_ms, atol=2e-6)
    np.testing.assert_allclose(profile.energy_mj, stated.energy_mj, rtol=1e-4)
    assert profile.idle_power_w == pytest.approx(0.5)
    assert "emulated" in profile.measured["energy_source"]
    assert all(row["energy_standard_error_mj"] < 1e-3 for row in rows)


@pytest.mark.usefixtures("clock")
def test_a_profile_records_how_it_was_measured(tmp_path):
    date = "2026-01-02T03:04:05+00:00"
    profile = measure(Emulated(LINE), energy_note="no meter here", date=date)
    profile.save(tmp_path / "profile.json")
    kept = Profile.load(tmp_path / "profile.json")
    assert (kept.model, kept.device, kept.max_batch_size, kept.energy_mj) == ("m", "cpu", 4, None)
    np.testing.assert_array_equal(kept.latency_ms, profile.latency_ms)
    rows = kept.measured["batch_sizes"]
    assert [(row["batch_size"], row["repeats"]) for row in rows] == [(n, 5) for n in range(1, 5)]
    assert kept.measured["energy_source"] == "no meter here"
    assert kept.measured["date"] == date
    assert kept.measured["hardware"]
    assert set(kept.measured["versions"]) >= {"python", "platform", "numpy"}


@settings(
    max_examples=20, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.floats(0.0, 50.0),
    st.floats(0.5, 20.0),
    st.floats(0.0, 20.0),
    st.floats(0.5, 5.0),
    st.sampled_from([0.001, 0.02, 0.1]),
)
def test_a_replica_measures_energy_by_a_coarse_counter_in_the_time_of_its_start(
    clock, idle_w, fixed_mj, per_request_mj, fixed_ms, period_s
):
    sizes = np.arange(1, 33)
    latency_ms = fixed_ms + 0.3 * sizes
    energy_mj = idle_w * latency_ms + fixed_mj + per_request_mj * sizes
    model = Emulated(Profile("m", "d", latency_ms, energy_mj, idle_power_w=idle_w).to_dict())
    meter = CoarseCounter(model.energy_meter(), clock, period_s)
    began_s = clock.perf_counter()
    profile = measure(model, max_batch_size=32, budget_s=1.0, energy_meter=meter)
    assert clock.perf_counter() - began_s < 4.0
    # A window is off by at most a batch at each of its ends.
    error = 0.02 + latency_ms[-1] / 1e3 / max(period_s, profiling.SHORT_ENERGY_WINDOW_S)
    np.testing.assert_allclose(profile.energy_mj, energy_mj, rtol=error)
    assert profile.idle_power_w == pytest.approx(idle_w, rel=error, abs=1e-6)


@pytest.mark.usefixtures("clock")
def test_a_budget_ends_the_rounds_after_at_least_one():
    # A round takes 9 ms. Two rounds of warm-up use more than 30% of the budget; four more end it.
    profile = measure(Emulated(LINE), budget_s=0.05, repeats=1_000_000)
    assert [row["repeats"] for row in profile.measured["batch_sizes"]] == [4, 4, 4, 4]
    profile = measure(Emulated(LINE), budget_s=1e-9)
    assert [row["repeats"] for row in profile.measured["batch_sizes"]] == [1, 1, 1, 1]


@pytest.mark.parametrize("name", ["max_batch_size", "repeats"])
def test_wrong_counts_are_rejected(name):
    with pytest.raises(InvalidInputError, match="must be at least 1, not 0"):
        measure(Emulated(LINE), **{name: 0})


def test_the_error_of_a_failing_model_names_the_batch_size():
    class Small(Model):
        inputs = outputs = (TensorSpec("x", "FP32"),)

        def load(self, device): ...

        def forward(self, batch):
            if len(batch["x"]) > 2:
                raise MemoryError("out of memory")
            return batch

    with pytest.raises(StartError, match="batch of 3: MemoryError: out of memory"):
        measure(Small())
    Small.outputs = (TensorSpec("x", "BYTES"),)
    with pytest.raises(StartError, match="output 'x': BYTES expected, got float"):
        measure(Small())


@pytest.mark.slow
@settings(max_examples=20)
@given(st.floats(0.01, 0.3), st.integers(0, 2**32 - 1))
def test_quantiles_are_relative_to_the_median_of_each_size(variation, seed):
    rng = np.random.default_rng(seed)
    times_ms = {size: (size * rng.gamma(variation**-2, variation**2, 400)) for size in (1, 2, 4)}
    quantiles = fit_quantiles(times_ms, 4)
    assert quantiles.percentiles.tolist() == [10, 50, 90, 99]
    assert quantiles.ratios[1] == pytest.approx(np.ones(4), abs=0.01)
    expected = np.quantile(rng.gamma(variation**-2, variation**2, 10_000), [0.1, 0.5, 0.9])
    found = quantiles.ratios[:3] / (expected / expected[1])[:, None]
    assert found == pytest.approx(np.ones((3, 4)), abs=0.6 * variation)


def test_stalls_of_the_machine_have_a_bound():
    stalled = [1.0] * 90 + [1000.0] * 10
    assert fit_quantiles({1: stalled, 2: stalled}, 2).ratios.max() == MAX_RATIO


def test_a_profile_says_how_batch_times_vary_if_asked(clock):
    model = Emulated(LINE)
    assert measure(model).latency_quantiles is None
    assert measure(model, variation=True).latency_quantiles.ratios.shape == (4, 4)
