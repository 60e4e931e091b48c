"""How the replicas of a simulated fleet batch, by a name."""

import math

from deployments.config import PolicyConfig, SLAConfig, UserConfig
from policy.baseline_policies import FORMS, reference_policy
from policy.errors import InvalidInputError
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.table import PolicyTable, solve_table

#: How the names are written.
NAMES = ("sla", "weights", "weights:ENERGY_WEIGHT", *FORMS)


def user_config(objective: ServiceLevelObjective, batching: str = "sla") -> UserConfig:
    """Give the configuration of a live service with this SLA.

    Raises
    ------
    InvalidInputError
        The energy weight in the name is no number of at least 0.
    """
    kind, colon, weight = batching.partition(":")
    energy_weight = 0.0
    if kind == "weights" and colon:
        try:
            energy_weight = float(weight)
        except ValueError:
            energy_weight = math.nan
        if not 0 <= energy_weight < math.inf:
            raise InvalidInputError(
                f"batching {batching!r}: the energy weight must be a number of at least 0"
            )
    return UserConfig(
        sla=SLAConfig(response_time_ms=objective.response_time_ms, percentile=objective.percentile),
        policy=PolicyConfig(
            objective="weights" if kind == "weights" else "auto", energy_weight=energy_weight
        ),
    )


def policy_table(profile: Profile, objective: ServiceLevelObjective, batching: str) -> PolicyTable:
    """Give the table by which each replica batches.

    Parameters
    ----------
    profile : Profile
    objective : ServiceLevelObjective
        The SLA; a table for it leaves a share of the response time to the network, as live.
    batching : str
        ``sla``: what a live replica does by itself, the least power that keeps the SLA, or the
        least mean response where no energy is known; ``weights:0.5``: the least mean response in
        ms plus half of the mean power in W; or a name of `policy.baseline_policies`, the same
        policy at every rate.

    Raises
    ------
    InvalidInputError, InfeasibleError
        The name or its numbers are not possible, or there is no policy in so short a time.
    """
    kind, _, _ = batching.partition(":")
    if batching == "sla" or kind == "weights":
        return solve_table(profile, user_config(objective, batching).policy_objective(profile))
    if kind not in {form.partition(":")[0] for form in FORMS}:
        raise InvalidInputError(f"batching {batching!r}: must be one of {', '.join(NAMES)}")
    policy = reference_policy(batching, profile)
    return PolicyTable((profile.capacity_per_s,), (policy, policy), f"{profile.model} {batching}")
