"""Pipelines in virtual time: against the compiled simulation, under overload, and with scaling."""

import math

import numpy as np
import pytest

from deployments.pipelines.core.steps import Each, Ensemble, Stage, Switch
from deployments.pipelines.planning.scaling import DivisionTable
from deployments.pipelines.planning.simulation import simulate_pipeline
from deployments.pipelines.planning.tandem import own_settings, simulate
from policy.errors import InvalidInputError
from policy.objective import ServiceLevelObjective
from policy.profile import Profile

SLA = ServiceLevelObjective(100.0, 99.0)


def stage(name, fixed_ms, size=4, **options):
    latency_ms = [fixed_ms + 0.5 * batch for batch in range(1, size + 1)]
    return Stage(
        abs, name, batch_size=size, profile=Profile("m", "d", np.array(latency_ms)), **options
    )


def poisson(rate_per_s, requests, seed=15):
    gaps = np.random.default_rng(seed).exponential(1e3 / rate_per_s, requests)
    return 1e-3 * np.cumsum(gaps)


def run(steps, arrivals_s, **options):
    return simulate_pipeline(steps, arrivals_s, SLA, 10**6, **options)


@pytest.mark.slow
def test_it_agrees_with_the_compiled_simulation():
    """The same arrivals have the same response times, where nothing is refused."""
    steps = [stage("a", 3.0, max_wait_ms=2.0), stage("b", 8.0, workers=2), stage("c", 1.0, 1)]
    stages = [step for step in steps if isinstance(step, Stage)]
    compiled_ms = simulate(steps, own_settings(stages), 200.0, requests=4000).response_ms
    simulated = run(steps, poisson(200.0, 4000), refuse=False)
    assert simulated.response_ms.size == 4000
    np.testing.assert_allclose(
        np.sort(simulated.response_ms)[[2000, 3600, 3960]],
        np.percentile(compiled_ms, [50, 90, 99]),
        rtol=0.05,
    )


def test_fan_outs_have_their_expected_items():
    steps = [
        Ensemble([stage("a", 1.0), stage("b", 1.0)]),
        Each(stage("each", 1.0, workers=4), expected_items=3),
        Switch(len, {"x": stage("x", 1.0), "y": []}, {"x": 0.25, "y": 0.75}),
    ]
    simulated = run(steps, poisson(20.0, 1000))
    items = {made.name: made.items for made in simulated.stages}
    assert (items["a"], items["b"], items["each"]) == (1000, 1000, 3000)
    assert items["x"] == pytest.approx(250, abs=5 * math.sqrt(1000 * 0.25 * 0.75))
    assert simulated.service_level == 1.0


def test_overload_is_refused_in_time():
    steps = [stage("light", 1.0), stage("heavy", 18.0)]
    simulated = run(steps, poisson(800.0, 4000))  # 4 in 20 ms: 200 per second
    assert simulated.offered == 4000
    assert simulated.refused + simulated.late + simulated.response_ms.size == 4000
    assert simulated.refused > 2500
    assert simulated.response_ms.max() <= 100.0
    assert simulated.stages[1].utilization > 0.95


def test_the_stage_that_is_short_gets_workers_and_no_other():
    table = DivisionTable((50.0, 150.0), ({"a": 1, "b": 1}, {"a": 1, "b": 2}))
    arrivals_s = np.concatenate([poisson(20.0, 200), 10 + poisson(100.0, 1000)])
    arrivals_s.sort()
    simulated = run(
        [stage("a", 1.0), stage("b", 8.0)],
        arrivals_s,
        divisions=table,
        scale_down_delay_s=3.0,
        start_time_s=2.0,
    )
    one, other = simulated.stages
    assert one.mean_workers == 1.0
    # Some 10 of 20 seconds at the higher rate, ordered a second late and started after two.
    assert 1.2 < other.mean_workers < 1.6
    assert simulated.service_level > 0.99


def test_what_cannot_be_simulated():
    with pytest.raises(InvalidInputError, match="planning needs its profile"):
        run([Stage(abs, "a")], [0.0])
    with pytest.raises(InvalidInputError, match="ascending"):
        run([stage("a", 1.0)], [1.0, 0.0])
    assert run([stage("a", 1.0)], []).service_level == 1.0
