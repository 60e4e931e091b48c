"""The batching policies of a stage, solved from its profile."""

from pipelines.steps import Stage
from policy.errors import InvalidInputError
from policy.objective import Objective, ServiceLevelObjective, Weights
from policy.table import PolicyTable, solve_table

#: Percentile for the budget of one stage; that of the whole follows from all stages together.
_PERCENTILE = 99.0


def stage_objective(stage: Stage) -> Objective:
    """Return what the policy of a stage is solved for.

    With energies and a budget, the least power within it; otherwise the least mean response time.
    """
    profile = stage.profile
    if profile is not None and profile.energy_mj is not None and stage.budget_ms is not None:
        return ServiceLevelObjective(stage.budget_ms, _PERCENTILE)
    return Weights()


def solve_stage_table(stage: Stage) -> PolicyTable:
    """Solve the policy table of a stage.

    Raises
    ------
    InvalidInputError
        The stage has no profile.
    InfeasibleError
        Its budget is below the shortest batch.
    """
    if stage.batch_profile is None:
        raise InvalidInputError(f"stage {stage.name}: a policy table needs a profile")
    return solve_table(stage.batch_profile, stage_objective(stage))
