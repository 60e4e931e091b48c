"""What the policy of a stage is solved for."""

import pytest

from deployments.pipelines.policies import problem_of, solve_problem
from deployments.pipelines.steps import Stage
from policy.errors import InvalidInputError
from policy.objective import ServiceLevelObjective, Weights
from policy.profile import Profile

PLAIN = Profile("m", "d", latency_ms=[5.0, 5.5, 6.0, 6.5])
POWERED = Profile("m", "d", latency_ms=[5.0, 5.5, 6.0, 6.5], energy_mj=[50.0, 51.0, 52.0, 53.0])


def stage(profile, **options):
    return Stage(abs, batch_size=3, policy="smdp", profile=profile, **options)


def test_with_energies_and_a_budget_power_is_saved_within_it():
    profile, objective = problem_of(stage(POWERED, budget_ms=40.0))
    assert profile.max_batch_size == 3
    assert objective == ServiceLevelObjective(40.0, 99.0)
    table = solve_problem((profile, objective))
    policy = table.lookup(0.4 * profile.capacity_per_s)
    assert policy.control_limit > 1
    assert policy.max_batch_size == 3


@pytest.mark.parametrize(
    ("profile", "options"), [(PLAIN, {"budget_ms": 40.0}), (PLAIN, {}), (POWERED, {})]
)
def test_otherwise_the_mean_response_time_counts(profile, options):
    assert problem_of(stage(profile, **options))[1] == Weights()


def test_it_needs_a_profile():
    with pytest.raises(InvalidInputError, match="stage abs: a policy table needs a profile"):
        problem_of(Stage(abs))
