"""The scenario of a simulation: the load, the replicas, the balancer, and failures."""

import math
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from autoscaler.history.traces import Trace
from autoscaler.settings import AutoscalerSettings
from autoscaler.simulator.arrivals import WithinSecond
from autoscaler.simulator.engines.interface import Routing
from autoscaler.simulator.start_time import StartTime
from autoscaler.sizing.service_estimator import ServiceEstimator
from autoscaler.standbys import TwoTierStarts
from policy.batching_policy import BatchingPolicy
from policy.errors import InvalidInputError
from policy.load_lateness import LoadLatenessCurve
from policy.objective import ServiceLevelObjective
from policy.power_limit import LimitedFleet, power_source, service_within, under_power_limit
from policy.profile import Profile
from policy.service_model import BatchingSettings, ServiceModel, service_model
from policy.tables.power import MULTIPLES, PowerTable, check_power_limit, solve_power_table
from policy.tables.table import PolicyTable
from policy.try_delays import RETRIES, TryDelays
from policy.values import check_at_least

FloatArray = NDArray[np.float64]

_MAX_RETRIES = 1000


@dataclass(frozen=True)
class Failures:
    """When ready replicas die, starts fail, and the cluster is full.

    `failed_start_share` is the probability, below 1, that a start fails at its very end and is
    tried again. In a span (begin_s, end_s, replicas) of `full_cluster` there is room for so many
    only: further orders wait, and the replicas that exist stay.
    """

    times_s: tuple[float, ...] = ()
    failed_start_share: float = 0.0
    full_cluster: tuple[tuple[float, float, int], ...] = ()

    def __post_init__(self) -> None:
        for value in (*self.times_s, self.failed_start_share, *chain(*self.full_cluster)):
            check_at_least(0, "failures", value)
        if self.failed_start_share >= 1:
            raise InvalidInputError(
                f"failed_start_share: must be below 1, not {self.failed_start_share}"
            )

    def room(self, now_s: float) -> float:
        return min(
            (room for begin_s, end_s, room in self.full_cluster if begin_s <= now_s < end_s),
            default=math.inf,
        )


@dataclass(frozen=True, eq=False)
class Scenario:
    """One load on one kind of replica. Every autoscaler run on it sees the same arrivals.

    Attributes
    ----------
    profile : Profile
        Profile of every replica. If it says what requests cost the event loop, they pass the event
        loop as well; see `replica_profile`.
    objective : ServiceLevelObjective
        The client's SLA. A response time counts from sending the request to having the answer.
    counts : FloatArray, shape (seconds,)
        Requests in each second. Fractions are rounded up or down at random, right on average.
    within_second : WithinSecond
        How requests are spread over their second; `UNIFORM` suits the counts of a Poisson process.
    start_time : StartTime
        Time from a replica's order until it serves.
    seed : int
        Seed of everything random.
    routing : Routing
        How the balancer picks a replica.
    delays : TryDelays
        Delays between balancer and replica. `retries` must be a number.
    batching : PolicyTable, BatchingPolicy or None
        When each replica starts a batch. None: by the table that a live replica solves for this
        SLA and its settings. No batch is larger than a live replica's limits allow.
    settings : BatchingSettings
        Of the service. Without `batching`, replicas use the policy table of these settings.
    power_limit_w : float or None
        The ceiling on the power of all replicas, in W, which then decides how they batch.
    replicas : int
        Replicas that are ready at the beginning.
    min_replicas, max_replicas : int
        Bounds on what an autoscaler may order.
    failures : Failures
        When replicas die.
    standby_start_time : StartTime or None
        Time until a standby serves. None: the fleet has no standbys.
    autoscaler_settings : AutoscalerSettings or None
        Settings that replicas report to be in force. None: they report none.
    history : Trace or None
        Load before the run, at negative times, that Sojourn's autoscaler learns from. None: its
        past is unknown.

    Raises
    ------
    InvalidInputError
        A value is out of its range.
    InfeasibleError
        The policy table of this SLA is needed, and no policy meets the SLA.
    """

    profile: Profile
    objective: ServiceLevelObjective
    counts: FloatArray
    within_second: WithinSecond = WithinSecond.LINEAR
    start_time: StartTime = field(default_factory=StartTime)
    seed: int = 0
    routing: Routing = Routing.RANDOM
    delays: TryDelays = field(default_factory=lambda: TryDelays(retries=RETRIES))
    batching: PolicyTable | BatchingPolicy | None = None
    settings: BatchingSettings = field(default_factory=BatchingSettings)
    power_limit_w: float | None = None
    replicas: int = 1
    min_replicas: int = 1
    max_replicas: int = 1000
    failures: Failures = field(default_factory=Failures)
    standby_start_time: StartTime | None = None
    autoscaler_settings: AutoscalerSettings | None = None
    history: Trace | None = None

    def __post_init__(self) -> None:
        counts = np.array(self.counts, dtype=np.float64)
        if counts.ndim != 1 or not counts.size:
            raise InvalidInputError("counts: must be one number for each second, at least one")
        if not (np.all(np.isfinite(counts)) and np.all(counts >= 0)):
            raise InvalidInputError("counts: must be finite and at least 0")
        counts.setflags(write=False)
        object.__setattr__(self, "counts", counts)
        _check_whole("seed", self.seed, 0, 2**63 - 1)
        if self.delays.retries is None:
            raise InvalidInputError("delays: retries must be a number in a simulation")
        _check_whole("retries", self.delays.retries, 0, _MAX_RETRIES)
        room, age_ms = self.settings.max_queue_rows, self.settings.max_age_ms
        if room is not None:
            _check_whole("max_queue_rows", room, 1, 1_000_000)
        if age_ms is not None and not age_ms >= 0:
            raise InvalidInputError(f"max_age_ms: must be at least 0, not {age_ms}")
        _check_whole("min_replicas", self.min_replicas, 0, 1_000_000)
        _check_whole("max_replicas", self.max_replicas, max(1, self.min_replicas), 1_000_000)
        _check_whole("replicas", self.replicas, self.min_replicas, self.max_replicas)
        for name, kind in (("routing", Routing), ("within_second", WithinSecond)):
            try:
                object.__setattr__(self, name, kind(getattr(self, name)))
            except ValueError:
                raise InvalidInputError(
                    f"{name}: must be one of {', '.join(kind)}, not {getattr(self, name)!r}"
                ) from None
        if (largest := self._largest_given) > self.profile.max_batch_size:
            raise InvalidInputError(
                f"batching: starts batches of {largest}, but the profile ends at "
                f"{self.profile.max_batch_size}"
            )
        if self.power_limit_w is not None:
            check_power_limit(self.profile, self.power_limit_w)
            if self.batching or self.settings.table or self.settings.objective != "auto":
                raise InvalidInputError("power limit: decides how replicas batch; omit batching")
        _ = self.table  # solved once, here, so that an unreachable SLA is found before the run

    @property
    def seconds(self) -> int:
        """Length of the run in s."""
        return int(self.counts.size)

    @property
    def replica_profile(self) -> Profile:
        """The profile of the simulated replicas.

        An event loop and a device that share a CPU are one server, and this is its profile. Delays
        come from `delays`, so the profile's own are left out.
        """
        return _serial(self.profile)

    @property
    def _given(self) -> tuple[BatchingPolicy, ...]:
        """The policies of a fixed batching; none otherwise."""
        if self.batching is None:
            return ()
        given = self.batching
        return given.policies if isinstance(given, PolicyTable) else (given,)

    @property
    def _largest_given(self) -> int:
        return max((policy.max_batch_size for policy in self._given), default=0)

    @property
    def service(self) -> ServiceModel:
        """The batching of each replica, as in a live service with these settings."""
        settings = self.settings
        if self.batching is not None:
            limit = min(self._largest_given, settings.batch_size_limit or self._largest_given)
            settings = replace(settings, batch_size_limit=limit)
        return _service(self.replica_profile, self.objective, self.delays, settings)

    @property
    def table(self) -> PolicyTable:
        """The policy table of each replica."""
        if self.batching is None:
            return self.service.table
        policies = tuple(one.up_to(self.service.limits.max_batch_size) for one in self._given)
        if isinstance(self.batching, PolicyTable):
            return replace(self.batching, policies=policies)
        rates = (self.replica_profile.capacity_per_s,)
        return PolicyTable(rates, 2 * policies)

    @property
    def two_tier_starts(self) -> TwoTierStarts | None:
        """The data on standbys for an autoscaler; None without standbys."""
        if self.standby_start_time is None:
            return None
        near_s = self.standby_start_time.percentile_s(90)
        cold_s = self.start_time.percentile_s(90)
        return TwoTierStarts(min(near_s, cold_s), cold_s)

    @property
    def power_table(self) -> PowerTable:
        """The policies of a replica under each ceiling on its power."""
        return _power_table(self.service)

    def under_power_limit(self, arrival_rate_per_s: float, replicas: int) -> LimitedFleet:
        """Return which of so many replicas run under the ceiling on the power, and how."""
        assert self.power_limit_w is not None
        service, table = self.service, self.power_table
        return under_power_limit(service, self.power_limit_w, arrival_rate_per_s, replicas, table)

    def services(self) -> dict[float, ServiceModel]:
        """Return how a replica batches, by the multiple of its SLA that a ceiling leaves it.

        What is in time is still what the SLA asks for.
        """
        service = self.service
        if self.power_limit_w is None:
            return {1.0: service}
        within = {one: service_within(service, self.power_table, one) for one in MULTIPLES}
        return {
            one: replace(longer, client_sla=service.client_sla, sla=service.sla)
            for one, longer in within.items()
        }

    @property
    def estimator(self) -> ServiceEstimator:
        """The model that predicts its fleets."""
        return ServiceEstimator(self.service, None if self.batching is None else self.table)

    @property
    def load_lateness_curve(self) -> LoadLatenessCurve:
        """The curve that replicas report.

        Raises
        ------
        InfeasibleError
            No arrival rate meets the SLA; the message says what is in reach.
        """
        if self.batching is None:
            return self.service.curve
        return _curve(self.service, self.table)


# Profiles and service models are hashed by identity, so runs on the same profile share solved
# tables.
_serial = lru_cache(maxsize=32)(Profile.serial)
_service = lru_cache(maxsize=32)(service_model)


@lru_cache(maxsize=32)
def _power_table(service: ServiceModel) -> PowerTable:
    return solve_power_table(*power_source(service))


@lru_cache(maxsize=32)
def _curve(service: ServiceModel, table: PolicyTable) -> LoadLatenessCurve:
    return service.curve_of(table.lookup)


def _check_whole(name: str, value: object, low: int, high: int) -> None:
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or not low <= value <= high:  # type: ignore[operator]
        raise InvalidInputError(
            f"{name}: must be a whole number from {low} to {high}, not {value!r}"
        )
