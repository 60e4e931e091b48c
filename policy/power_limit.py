"""A service under a ceiling on its power: for live replicas, `plan` and the simulator alike."""

from dataclasses import dataclass, replace

from policy.errors import InvalidInputError
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.service_model import ServiceModel
from policy.tables.power import (
    MULTIPLES,
    PowerTable,
    check_power_limit,
    in_words_under,
    solve_power_table,
)


@dataclass(frozen=True)
class LimitedFleet:
    """The replicas under a ceiling, and how each of them batches, for the SLA that is left.

    `in_words` says what the ceiling leaves of the SLA that was asked for.
    """

    replicas: int
    service: ServiceModel
    in_words: str


def power_source(service: ServiceModel) -> tuple[Profile, ServiceLevelObjective]:
    """Return what the power table of a service is solved for."""
    return service.times(MULTIPLES[-1]).profile, service.batching_sla


def service_within(service: ServiceModel, table: PowerTable, multiple: float) -> ServiceModel:
    """Return how a replica batches for a multiple of its SLA; it refuses by no shorter time."""
    longer = service.times(max(1.0, multiple))
    policies = table.policies_for(multiple)
    fitting = tuple(one.up_to(longer.limits.max_batch_size) for one in policies.policies)
    return replace(longer, given=replace(policies, policies=fitting))


def under_power_limit(
    service: ServiceModel,
    limit_w: float,
    arrival_rate_per_s: float,
    needed: int,
    table: PowerTable | None = None,
) -> LimitedFleet:
    """Return the fleet that answers soonest under a ceiling, as a live service would be.

    `service` is that of the SLA, for which `needed` replicas are enough. Its power table is solved
    unless it is given.

    Raises
    ------
    InvalidInputError
        The profile has no energy, an idle replica draws more than the ceiling, or the policy is
        given.
    """
    check_power_limit(service.device, limit_w)
    if service.settings.table is not None:
        raise InvalidInputError("power limit: it decides the policy; omit the policy's table")
    table = table or solve_power_table(*power_source(service))
    replicas, multiple = table.replicas_within(limit_w, arrival_rate_per_s, needed)
    own = table.multiple_within(arrival_rate_per_s / replicas, limit_w / replicas)
    return LimitedFleet(
        replicas,
        service_within(service, table, own),
        in_words_under(limit_w, service.client_sla, multiple),
    )
