"""Policy tables for simulated replicas, by name."""

import math

from deployments.config.user_config import PolicyConfig, SLAConfig, UserConfig
from policy.baseline_policies import FORMS, reference_policy
from policy.errors import InvalidInputError
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.table import PolicyTable
from policy.table_solving import solve_table

#: The names, as a user writes them.
NAMES = ("sla", "weights", "weights:ENERGY_WEIGHT", *FORMS)


def live_user_config(objective: ServiceLevelObjective, batching: str = "sla") -> UserConfig:
    """Return the configuration of a live service with this SLA.

    Parameters
    ----------
    objective : ServiceLevelObjective
        The client's SLA.
    batching : str
        ``sla``, ``weights`` or ``weights:ENERGY_WEIGHT``; see `policy_table`.

    Raises
    ------
    InvalidInputError
        The energy weight in the name is not a number of at least 0.
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
    """Return the table by which a replica starts its batches.

    Parameters
    ----------
    profile : Profile
        Profile of the replica.
    objective : ServiceLevelObjective
        The client's SLA. As in a live replica, a table for it leaves a share of the response time
        to the network.
    batching : str
        ``sla``: what a live replica solves by default, the least power that keeps the SLA, or the
        least mean response time if the profile has no energy. ``weights:0.5``: the least sum of
        the mean response time in ms and half of the mean power in W. Otherwise a name of
        `policy.baseline_policies`, the same policy at every rate.

    Returns
    -------
    PolicyTable

    Raises
    ------
    InvalidInputError
        The name is unknown or its numbers are out of range.
    InfeasibleError
        No policy meets the SLA.
    """
    kind, _, _ = batching.partition(":")
    if batching == "sla" or kind == "weights":
        return solve_table(profile, live_user_config(objective, batching).policy_objective(profile))
    if kind not in {form.partition(":")[0] for form in FORMS}:
        raise InvalidInputError(f"batching {batching!r}: must be one of {', '.join(NAMES)}")
    policy = reference_policy(batching, profile)
    return PolicyTable((profile.capacity_per_s,), (policy, policy), f"{profile.model} {batching}")
