import numpy as np
import pytest

from deployments.pipelines.core.graph import compile_steps
from deployments.pipelines.core.steps import Each, Ensemble, Stage
from deployments.pipelines.planning.tandem import response_ms_of, simulate
from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError, InvalidInputError
from policy.profile import Profile
from policy.response_time.evaluation import evaluate
from tests.support.pipelines.machine import Machine


def simulate_response_ms(*arguments, **options):
    return simulate(*arguments, **options).response_ms


def same(x):
    return x


def stage(name, fixed_ms, per_item_ms=0.0, size=1, **options):
    latency_ms = [fixed_ms + per_item_ms * batch for batch in range(1, size + 1)]
    profile = Profile("m", "d", latency_ms=latency_ms)
    return Stage(same, name, batch_size=size, profile=profile, **options)


TABLE = BatchingPolicy((0, 0, 2, 0, 4, 5, 5), 30.0)
PIPELINES = {
    "one": [stage("a", 3.1, 0.7, 8, workers=2)],
    "waits": [stage("a", 5.3, 1.1, 8, max_wait_ms=7.3)],
    "a table": [stage("a", 5.3, 1.1, 8, policy=TABLE)],
    "tandem": [stage("a", 2.3), stage("b", 5.1, 0.9, 8, workers=3), stage("c", 1.7, 0.3, 4)],
    "ensemble": [Ensemble([stage("a", 3.3, 0.9, 4), [stage("b", 1.9), stage("c", 1.1)]])],
    "each": [Each(stage("a", 1.3, 0.31, 8), expected_items=3), stage("b", 2.7)],
}


@pytest.mark.parametrize("name", PIPELINES)
def test_it_does_what_the_live_core_does_item_by_item(name):
    steps, rate_per_s, count = PIPELINES[name], 220.0, 1500
    arrivals_s = np.cumsum(np.random.default_rng(15).exponential(1 / rate_per_s, count))
    response_ms = response_ms_of(steps, 1e3 * arrivals_s)
    stages = compile_steps(steps).stages
    machine = Machine(steps, {part.name: part.profile.latency_ms.tolist() for part in stages})
    flows = []
    for arrival_s in arrivals_s:
        machine.run(until_s=arrival_s)
        value = [0, 0, 0] if name == "each" else 0
        flows.append(machine.submit(value))
    machine.run(until_s=arrivals_s[-1] + 10)
    measured_ms = [1e3 * (machine.ended[flow.id][0] - flow.arrival_s) for flow in flows]
    np.testing.assert_allclose(measured_ms[:-50], response_ms[:-50], rtol=0, atol=2e-3)


@pytest.mark.parametrize("load", [0.3, 0.8])
def test_one_stage_agrees_with_the_exact_distribution(load):
    part = stage("a", 5.0, 0.5, 16)
    rate_per_s = load * part.profile.capacity_per_s
    response_ms = simulate_response_ms([part], rate_per_s)
    exact = evaluate(part.profile, part.first_policy(), rate_per_s)
    for percentile in (50, 90, 99):
        simulated_ms = np.percentile(response_ms, percentile)
        assert simulated_ms == pytest.approx(exact.response_percentile_ms(percentile), rel=0.02)


def test_what_cannot_be_simulated():
    part = stage("a", 5.0)
    with pytest.raises(InfeasibleError, match="stage a: 1 workers serve at most 200"):
        simulate_response_ms([part], 200.0)
    with pytest.raises(InvalidInputError, match="arrival rate"):
        simulate_response_ms([part], 0.0)
    bare = Stage(same, "bare")
    with pytest.raises(InvalidInputError, match="stage bare: planning needs its profile"):
        simulate_response_ms([bare], 1.0)


def varying(name, latency_ms, quantiles, size=1, **options):
    """Return a stage whose batches vary."""
    content = {"max_batch_size": size, "latency_ms": latency_ms, "latency_quantiles": quantiles}
    return Stage(same, name, batch_size=size, profile=Profile.from_dict(content), **options)


@pytest.mark.slow
def test_the_mean_wait_is_that_of_pollaczek_and_khinchine():
    """One worker without batches: W = λ E[S²] / (2 (1 - ρ)), from the variance alone."""
    # Log-normal with a standard deviation of 0.5: its quantiles at ± one deviation.
    low, high = np.exp([-0.5, 0.5])
    steps = [varying("a", [5.0], {"15.8655": low, "50": 1.0, "84.1345": high})]
    mean_ms, second = 5.0 * np.exp(0.125), 25.0 * np.exp(0.5)
    for load in (0.3, 0.7):
        per_ms = load / mean_ms
        wait_ms = per_ms * second / (2 * (1 - load))
        response_ms = simulate_response_ms(steps, 1e3 * per_ms, requests=400_000)
        assert response_ms.mean() == pytest.approx(mean_ms + wait_ms, rel=0.02)


def test_a_stage_that_keeps_up_only_with_its_median_does_not_keep_up():
    steps = [varying("a", [5.0], {"50": 1.0, "60": 2.0})]
    with pytest.raises(InfeasibleError, match="serve at most"):
        simulate_response_ms(steps, 190.0, requests=100)


def test_times_of_stages_add_up_and_their_batches_take_their_utilization():
    steps = [stage("a", 2.0, 1.0, 4, workers=2), stage("b", 1.0, 0.5, 2)]
    rate_per_s = 500.0
    run = simulate(steps, rate_per_s, requests=40_000)
    # Sequential stages: what a request spends is what it spends in each.
    spent_ms = run.stages["a"].times_ms + run.stages["b"].times_ms
    assert spent_ms == pytest.approx(run.response_ms)
    for part in steps:
        load = run.stages[part.name]
        assert 1 < load.mean_batch_size < part.batch_size
        # Affine latencies: their mean is the latency at the mean size.
        sizes = np.arange(1, part.batch_size + 1)
        mean_ms = np.interp(load.mean_batch_size, sizes, part.profile.latency_ms)
        busy = rate_per_s / load.mean_batch_size * mean_ms / 1e3 / part.workers
        assert load.utilization == pytest.approx(busy, rel=0.02)
