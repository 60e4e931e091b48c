"""A fleet under a ceiling on its power: `policy.tables.power`, for `plan` and the simulator."""

from dataclasses import dataclass, replace

from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.service_model import ServiceModel, service_model
from policy.tables.power import MULTIPLES, check_power_limit, in_words_under, solve_power_table


@dataclass(frozen=True)
class LimitedFleet:
    """The replicas under a ceiling, how each of them batches, and the SLA that they hold.

    `in_words` says what the ceiling leaves of the SLA that was asked for.
    """

    replicas: int
    service: ServiceModel
    sla: ServiceLevelObjective
    in_words: str


def under_power_limit(
    profile: Profile, service: ServiceModel, limit_w: float, arrival_rate_per_s: float, needed: int
) -> LimitedFleet:
    """Return the fleet that answers soonest under a ceiling, as a live service would be.

    `service` is that of the SLA on the whole `profile`, for which `needed` replicas are enough.

    Raises
    ------
    InvalidInputError
        The profile has no energy, or an idle replica draws more than the ceiling.
    """
    check_power_limit(profile, limit_w)
    longest = service_model(profile, service.client_sla.times(MULTIPLES[-1]), service.delays)
    table = solve_power_table(longest.profile, service.batching_sla)
    replicas, multiple = table.replicas_within(limit_w, arrival_rate_per_s, needed)
    sla = service.client_sla.times(min(multiple, MULTIPLES[-1]))
    limited = service_model(profile, sla, service.delays)
    policies = table.policies_for(
        table.multiple_within(arrival_rate_per_s / replicas, limit_w / replicas)
    )
    within = tuple(one.up_to(limited.limits.max_batch_size) for one in policies.policies)
    return LimitedFleet(
        replicas,
        replace(limited, given=replace(policies, policies=within)),
        sla,
        in_words_under(limit_w, service.client_sla, multiple),
    )
