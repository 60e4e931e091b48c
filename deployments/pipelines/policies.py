"""The batching policies of a stage, solved from its profile."""

from deployments.pipelines.steps import Stage
from policy.errors import InvalidInputError
from policy.objective import Objective, ServiceLevelObjective, Weights
from policy.profile import Profile
from policy.table import PolicyTable
from policy.table_solving import solve_table

#: Percentile for the budget of one stage; that of the whole follows from all stages together.
_PERCENTILE = 99.0


def problem_of(stage: Stage) -> tuple[Profile, Objective]:
    """Return what the policy table of a stage is solved for.

    With energies and a budget, the least power within it; otherwise the least mean response time.

    Raises
    ------
    InvalidInputError
        The stage has no profile.
    """
    profile = stage.batch_profile
    if profile is None:
        raise InvalidInputError(f"stage {stage.name}: a policy table needs a profile")
    if profile.energy_mj is not None and stage.budget_ms is not None:
        return profile, ServiceLevelObjective(stage.budget_ms, _PERCENTILE)
    return profile, Weights()


def solve_problem(problem: tuple[Profile, Objective]) -> PolicyTable:
    """Solve a policy table; the code of a stage that runs beside a pipeline.

    Raises
    ------
    InfeasibleError
        The objective leaves less time than the shortest batch takes.
    """
    return solve_table(*problem)
