"""How a service batches under an SLA: the one way from profile, SLA and settings to its limits.

The live service, `sojourn plan` and the simulator all ask `service_model`, so that they agree on
the largest batch, on what is admitted, and on what the policy table is solved for.
"""

from dataclasses import dataclass, field
from typing import Literal

from policy.batcher.limits import Limits, limits_for
from policy.objective import Objective, ServiceLevelObjective, Weights
from policy.profile import Profile
from policy.try_delays import TryDelays

#: Share of the SLA's response time that batching may use; the rest is for the network.
_BATCHING_SHARE = 0.9


@dataclass(frozen=True)
class BatchingSettings:
    """What a user may set about batching.

    Attributes
    ----------
    objective : {"auto", "sla", "weights"}
        What the policy minimizes: under ``sla`` the energy (without energy in the profile, the
        time that the device is busy), under ``weights`` a weighted sum. ``auto`` is ``sla`` if the
        profile has energy; otherwise it minimizes the mean response time.
    weights : Weights
        With ``weights``.
    max_queue_rows, max_age_ms, batch_size_limit, serve_late
        As for `policy.batcher.limits.limits_for`.
    """

    objective: Literal["auto", "sla", "weights"] = "auto"
    weights: Weights = field(default_factory=Weights)
    max_queue_rows: int | None = None
    max_age_ms: float | None = None
    batch_size_limit: int | None = None
    serve_late: bool = False

    def policy_objective(self, profile: Profile, sla: ServiceLevelObjective) -> Objective:
        """Return what the policy table of a profile is solved for."""
        if self.objective == "weights":
            return self.weights
        if self.objective == "auto" and profile.energy_mj is None:
            return Weights()
        return ServiceLevelObjective(_BATCHING_SHARE * sla.response_time_ms, sla.percentile)


@dataclass(frozen=True, eq=False)
class ServiceModel:
    """How each replica of a service batches.

    Attributes
    ----------
    profile : Profile
        Of the device, up to the largest batch that the limits allow.
    limits : Limits
        What bounds the batcher.
    objective : Objective
        What the policy table is solved for.
    sla : ServiceLevelObjective
        What the way to the replica and back leaves of the client's SLA.
    """

    profile: Profile
    limits: Limits
    objective: Objective
    sla: ServiceLevelObjective

    @property
    def search_sizes(self) -> bool:
        """Whether the policy table has batch sizes of its own: one for weights has not."""
        return isinstance(self.objective, ServiceLevelObjective)


def service_model(
    profile: Profile,
    sla: ServiceLevelObjective,
    delays: TryDelays,
    settings: BatchingSettings | None = None,
) -> ServiceModel:
    """Return how a service batches.

    Parameters
    ----------
    profile : Profile
        Of the device, with all batch sizes.
    sla : ServiceLevelObjective
        The SLA that the client sees.
    delays : TryDelays
        What the way to a replica and back takes of it.
    settings : BatchingSettings, optional
    """
    settings = settings or BatchingSettings()
    limits = limits_for(
        profile,
        sla,
        delays,
        max_queue_rows=settings.max_queue_rows,
        max_age_ms=settings.max_age_ms,
        batch_size_limit=settings.batch_size_limit,
        serve_late=settings.serve_late,
    )
    return ServiceModel(
        profile.up_to(limits.max_batch_size),
        limits,
        settings.policy_objective(profile, sla),
        sla.after(delays.round_trip_ms),
    )
