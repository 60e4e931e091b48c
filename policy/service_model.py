"""How a service batches under an SLA: the one way from profile, SLA and settings to its policy.

The live service, `sojourn plan`, the console and the simulator all ask `service_model`, so that
they agree on the largest batch, on what is admitted, on the policy table, and on what is in reach.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from policy.batcher.limits import Limits, limits_for
from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError, InvalidInputError
from policy.load_lateness import LoadLatenessCurve
from policy.objective import Objective, ServiceLevelObjective, Weights
from policy.profile import Profile
from policy.tables.file import TableFile
from policy.tables.table import PolicyTable
from policy.try_delays import TryDelays

if TYPE_CHECKING:
    from policy.tables.solving import TableSolver

#: Share of the SLA's response time that batching may use; the rest is for the network.
_BATCHING_SHARE = 0.9


@dataclass(frozen=True)
class BatchingSettings:
    """The settings of batching.

    Attributes
    ----------
    objective : {"auto", "sla", "weights"}
        What the policy minimizes: under ``sla`` the energy (without energy in the profile, the
        time that the device is busy), under ``weights`` a weighted sum. ``auto`` is ``sla`` if the
        profile has energy; otherwise it minimizes the mean response time.
    table : TableFile or None
        A table solved in advance, for the objective in its file; while the profile is another, one
        is solved for that.
    """

    objective: Literal["auto", "sla", "weights"] = "auto"
    weights: Weights = field(default_factory=Weights)
    max_queue_rows: int | None = None
    max_age_ms: float | None = None
    batch_size_limit: int | None = None
    serve_late: bool = False
    table: TableFile | None = None

    def policy_objective(self, profile: Profile, sla: ServiceLevelObjective) -> Objective:
        """Return what the policy table of a profile is solved for.

        `InvalidInputError`: the table in the settings was solved for another SLA.
        """
        within = sla.times(_BATCHING_SHARE)
        if self.table is not None:
            own = self.table.objective
            if isinstance(own, ServiceLevelObjective) and own != within:
                raise InvalidInputError(
                    f"policy table: was solved for batching {own.in_words()}, which under this SLA "
                    f"is {within.in_words()}; export it with --sla of the service"
                )
            return own
        if self.objective == "weights":
            return self.weights
        if self.objective == "auto" and profile.energy_mj is None:
            return Weights()
        return within


@dataclass(frozen=True, eq=False)
class ServiceModel:
    """How each replica of a service batches.

    Attributes
    ----------
    profile : Profile
        Of the device, up to the largest batch that the limits allow.
    objective : Objective
        What the policy table is solved for.
    client_sla, sla : ServiceLevelObjective
        The SLA that the client sees, and what the way to the replica and back leaves of it.
    delays : TryDelays
        What the way to a replica and back takes, and each try elsewhere.
    device : Profile
        The whole profile.
    settings : BatchingSettings
        What the user has set.
    given : PolicyTable or None
        The table of the settings, if it is for this profile.
    """

    profile: Profile
    limits: Limits
    objective: Objective
    client_sla: ServiceLevelObjective
    sla: ServiceLevelObjective
    delays: TryDelays
    device: Profile
    settings: BatchingSettings
    given: PolicyTable | None = None

    def times(self, multiple: float) -> "ServiceModel":
        """Return the service under a multiple of the SLA's response time."""
        sla = self.client_sla.times(multiple)
        return service_model(self.device, sla, self.delays, self.settings)

    @property
    def batching_sla(self) -> ServiceLevelObjective:
        """The part of the client's SLA that batching may take."""
        return self.client_sla.times(_BATCHING_SHARE)

    @property
    def search_sizes(self) -> bool:
        """Whether the policy table has batch sizes of its own: one for weights has not."""
        return isinstance(self.objective, ServiceLevelObjective)

    @cached_property
    def policies(self) -> "PolicyTable | TableSolver":
        """The policy of each arrival rate of a replica, under an SLA solved when looked up."""
        if self.given is not None or isinstance(self.objective, Weights):
            return self.table
        # Here and below: a process that only reads a config need not wait for scipy.
        from policy.tables.solving import TableSolver

        return TableSolver(self.profile, self.objective)

    @cached_property
    def table(self) -> PolicyTable:
        from policy.tables.solving import solve_table

        return self.given or solve_table(self.profile, self.objective)

    @cached_property
    def curve(self) -> LoadLatenessCurve:
        """The load–lateness curve of a replica.

        `InfeasibleError`: the SLA is out of reach; the message says what is in reach.
        """
        return self.curve_of(self.policies.lookup, self.search_sizes)

    def curve_of(
        self, policy_at: Callable[[float], BatchingPolicy], search_sizes: bool = False
    ) -> LoadLatenessCurve:
        """Return the curve of a replica with another policy in force at each arrival rate."""
        from policy.solvers.load_lateness import solve_load_lateness_curve

        return solve_load_lateness_curve(
            self.profile,
            self.client_sla,
            self.limits.max_queue_rows,
            admit_within_ms=self.limits.admit_within_ms,
            search_sizes=search_sizes,
            policy_at=policy_at,
            max_age_ms=self.limits.max_age_ms,
            round_trip_ms=self.client_sla.response_time_ms - self.sla.response_time_ms,
        )

    def check_feasible(self) -> None:
        """Raise `InfeasibleError` if even a batch of one, on an idle replica, is too late."""
        profile, round_trip_ms = self.profile.serial(), self.delays.round_trip_ms
        batch_ms = float(profile.latency_ms[0])
        if profile.event_loop is not None:
            batch_ms += profile.event_loop.ms_per_request(1)
        least_ms = batch_ms + round_trip_ms
        if self.search_sizes:
            least_ms = max(least_ms, batch_ms / _BATCHING_SHARE)
        if self.client_sla.response_time_ms <= least_ms:
            raise InfeasibleError(
                f"{self.client_sla.in_words()} is out of reach: a batch of one takes "
                f"{batch_ms:.4g} ms, and the way to a replica and back {round_trip_ms:.4g} ms; "
                f"allow more than {least_ms:.4g} ms, or use a faster device"
            )


def service_model(
    profile: Profile,
    sla: ServiceLevelObjective,
    delays: TryDelays,
    settings: BatchingSettings | None = None,
) -> ServiceModel:
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
    objective, table = settings.policy_objective(profile, sla), settings.table
    within = profile.up_to(limits.max_batch_size)
    return ServiceModel(
        within,
        limits,
        objective,
        sla,
        sla.after(delays.round_trip_ms),
        delays,
        profile,
        settings,
        None if table is None else table.table_for(within),
    )


def solve_curve(service: ServiceModel) -> LoadLatenessCurve | None:
    """Return the curve of a replica, for a worker process; None if its SLA is out of reach."""
    with contextlib.suppress(InfeasibleError):
        return service.curve
    return None
