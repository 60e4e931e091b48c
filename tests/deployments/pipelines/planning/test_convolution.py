"""The distribution of the whole from its stages, against exact cases and the simulation."""

import numpy as np
import pytest
from scipy import stats

from deployments.pipelines.planning.convolution import Times, response_cdf
from deployments.pipelines.planning.tandem import own_settings, simulate_response_ms
from deployments.pipelines.steps import Each, Ensemble, Stage, Switch
from policy.profile import Profile


def stage(name, fixed_ms=5.0, per_item_ms=0.5, size=16, **options):
    latency_ms = [fixed_ms + per_item_ms * batch for batch in range(1, size + 1)]
    return Stage(abs, name, batch_size=size, profile=Profile("m", "d", latency_ms), **options)


def percentiles_ms(steps, stages, rate_per_s, about_ms, wanted=(50, 90, 99)):
    times = Times(about_ms)
    cdf = response_cdf(steps, own_settings(stages), rate_per_s, times)
    return [times.percentile_ms(cdf, percentile) for percentile in wanted]


@pytest.mark.parametrize("stages", [2, 3, 5])
@pytest.mark.parametrize("load", [0.3, 0.6, 0.9])
def test_how_far_stages_in_tandem_are_from_the_simulation(stages, load):
    """A later stage's arrivals come in batches, and not as a Poisson stream: 5% at most."""
    steps = [stage(f"s{number}", 5.0 + number) for number in range(stages)]
    rate_per_s = load * min(step.profile.capacity_per_s for step in steps)
    simulated_ms = np.percentile(
        simulate_response_ms(steps, own_settings(steps), rate_per_s), (50, 90, 99)
    )
    computed_ms = percentiles_ms(steps, steps, rate_per_s, simulated_ms[-1])
    np.testing.assert_allclose(computed_ms, simulated_ms, rtol=0.05)


def test_it_is_exact_for_independent_times():
    """Two gamma times: their sum has a known distribution, and so has their maximum."""
    times = Times(30.0)
    first, second = stats.gamma(3, scale=2), stats.gamma(5, scale=2)
    total = times.convolve(first.cdf(times.ms), second.cdf(times.ms))
    np.testing.assert_allclose(total, stats.gamma(8, scale=2).cdf(times.ms), atol=1e-4)
    assert times.percentile_ms(total, 99) == pytest.approx(
        stats.gamma(8, scale=2).ppf(0.99), rel=1e-3
    )


def test_an_atom_stays_where_it_is():
    times = Times(30.0)
    cdf = times.convolve((times.ms >= 10).astype(float), (times.ms >= 5).astype(float))
    assert times.percentile_ms(cdf, 50) == pytest.approx(15.0, abs=2 * times.step_ms)


def test_what_takes_no_time_stays_at_zero():
    """A switch with an empty branch, before a stage and after it."""
    rate_per_s = 50.0
    do, last = stage("do"), stage("last")
    skip = Switch(abs, {0: [], 1: do}, {0: 0.9, 1: 0.1})
    for steps in ([skip, last], [last, skip], [skip, skip, last]):
        times = Times(30.0)
        cdf = response_cdf(steps, own_settings([do, last]), rate_per_s, times)
        assert cdf[-1] == pytest.approx(1.0)
        alone = response_cdf([last], own_settings([last]), rate_per_s, times)
        # A request that skips takes as long as with the last stage alone.
        assert times.percentile_ms(cdf, 50) < 1.2 * times.percentile_ms(alone, 50)


def test_branches_that_do_not_depend_on_each_other():
    """Stages with nearly no load take constant times: the longest branch, or one of them."""
    slow, fast = stage("slow", 9.5), stage("fast", 4.5)
    (longest_ms,) = percentiles_ms([Ensemble([slow, fast])], [slow, fast], 0.01, 20.0, (50,))
    assert longest_ms == pytest.approx(10.0, rel=0.01)
    switch = Switch(abs, {0: slow, 1: fast}, {0: 0.3, 1: 0.7})
    low_ms, high_ms = percentiles_ms([switch], [slow, fast], 0.01, 20.0, (60, 80))
    assert (low_ms, high_ms) == pytest.approx((5.0, 10.0), rel=0.01)
    (each_ms,) = percentiles_ms([Each(fast, expected_items=4)], [fast], 0.01, 20.0, (50,))
    assert each_ms == pytest.approx(5.0, rel=0.01)


def test_workers_that_share_a_queue_do_better_than_computed():
    steps = [stage("s", workers=3)]
    rate_per_s = 0.7 * 3 * steps[0].profile.capacity_per_s
    simulated_ms = np.percentile(
        simulate_response_ms(steps, own_settings(steps), rate_per_s), (50, 90, 99)
    )
    computed_ms = percentiles_ms(steps, steps, rate_per_s, simulated_ms[-1])
    assert np.all(computed_ms >= simulated_ms)
    np.testing.assert_allclose(computed_ms, simulated_ms, rtol=0.25)


def test_a_percentile_beyond_the_grid():
    times = Times(1.0)
    assert times.percentile_ms(np.full(times.ms.size, 0.5), 99) == np.inf
