"""Response times of a whole pipeline, from a compiled simulation of its stages.

Stages do not influence earlier stages, so they are simulated one by one: each turns the arrival
times of its items into their departure times, as `StageCore` does. Batch times come from the
profile; if it has their variation, each is drawn independently. Nothing is refused or cancelled.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numba
import numpy as np
from numpy.typing import NDArray

from deployments.pipelines.core.stage_core import longest_wait_ms
from deployments.pipelines.core.steps import Each, Ensemble, Stage, Step, Switch
from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError, InvalidInputError
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.values import check_above_0

FloatArray = NDArray[np.float64]

#: Requests of a simulation; the first tenth is not counted. At a load of 0.8 the 99th percentile of
#: this many is within 2% of the limit, mostly within 1%.
REQUESTS = 200_000
WARM_UP_SHARE = 0.1
SEED = 15


@dataclass(frozen=True, eq=False)
class StageLoad:
    """The simulated load of all workers of one stage; `times_ms` of each counted item in it."""

    mean_batch_size: float
    utilization: float
    times_ms: FloatArray
    mean_power_w: float | None


@dataclass(frozen=True, eq=False)
class SimulatedPipeline:
    response_ms: FloatArray
    stages: Mapping[str, StageLoad]

    def service_level(self, sla: ServiceLevelObjective) -> float:
        return float(np.mean(self.response_ms <= sla.response_time_ms))


def profile_of(stage: Stage) -> Profile:
    """Return the profile of a stage up to its largest batch; InvalidInputError if it has none."""
    if stage.batch_profile is None:
        raise InvalidInputError(f"stage {stage.name}: planning needs its profile")
    return stage.batch_profile


def simulate(
    steps: Sequence[Step],
    arrival_rate_per_s: float,
    workers: Mapping[str, int] | None = None,
    *,
    policies: Mapping[str, BatchingPolicy] | None = None,
    requests: int = REQUESTS,
    seed: int = SEED,
) -> SimulatedPipeline:
    """Simulate a pipeline under Poisson arrivals.

    `workers` and `policies` are by default the stages' own. The same seed gives the same arrivals.
    Raises `InvalidInputError` if a stage has no profile or the rate is not above 0 and finite, and
    `InfeasibleError` if a stage cannot keep up.
    """
    check_above_0("arrival rate", arrival_rate_per_s)
    random = np.random.default_rng(seed)
    gaps_ms = random.exponential(1e3 / arrival_rate_per_s, requests)
    arrivals_ms = np.cumsum(gaps_ms)
    passage = _Passage(workers or {}, policies or {}, random)
    ends_ms = passage.through(list(steps), arrivals_ms, arrival_rate_per_s)
    return SimulatedPipeline(_without_warm_up(ends_ms - arrivals_ms), passage.stages)


def response_ms_of(
    steps: Sequence[Step], arrivals_ms: FloatArray, *, seed: int = SEED
) -> FloatArray:
    """Return the response times of requests that arrive at given times; errors as of `simulate`."""
    rate_per_s = 1e3 * arrivals_ms.size / max(float(np.ptp(arrivals_ms)), 1e-9)
    passage = _Passage({}, {}, np.random.default_rng(seed))
    return passage.through(list(steps), arrivals_ms, rate_per_s) - arrivals_ms


def _without_warm_up(times_ms: FloatArray) -> FloatArray:
    return times_ms[int(WARM_UP_SHARE * times_ms.size) :]


@dataclass
class _Passage:
    workers: Mapping[str, int]
    policies: Mapping[str, BatchingPolicy]
    random: np.random.Generator
    stages: dict[str, StageLoad] = field(default_factory=dict)

    def through(
        self, step: "Step | Sequence[Step]", arrivals_ms: FloatArray, rate_per_s: float
    ) -> FloatArray:
        if isinstance(step, Stage):
            return self._stage(step, arrivals_ms, rate_per_s)
        if isinstance(step, Ensemble):
            ends = [self.through(branch, arrivals_ms, rate_per_s) for branch in step.branches]
            return np.asarray(np.max(ends, axis=0))
        if isinstance(step, Each):
            items = step.expected_items
            repeated = np.repeat(arrivals_ms, items)
            ends_ms = self.through(step.branch, repeated, rate_per_s * items)
            return np.asarray(ends_ms.reshape(-1, items).max(axis=1))
        if isinstance(step, Switch):
            shares = step.expected_shares
            keys = self.random.choice(len(shares), arrivals_ms.size, p=list(shares.values()))
            ends_ms = np.empty_like(arrivals_ms)
            for number, (key, share) in enumerate(shares.items()):
                chosen = keys == number
                ends_ms[chosen] = self.through(
                    step.branches[key], arrivals_ms[chosen], rate_per_s * share
                )
            return ends_ms
        for part in step:
            arrivals_ms = self.through(part, arrivals_ms, rate_per_s)
        return arrivals_ms

    def _stage(self, stage: Stage, arrivals_ms: FloatArray, rate_per_s: float) -> FloatArray:
        workers = self.workers.get(stage.name, stage.workers)
        profile = profile_of(stage)
        policy = self.policies.get(stage.name) or stage.first_policy()
        ratios, ranks = np.ones((profile.max_batch_size, 1)), np.zeros(1)
        means_ms = profile.latency_ms
        quantiles = profile.latency_quantiles
        if quantiles is not None:
            ratios = np.ascontiguousarray(quantiles.points[0])
            ranks = quantiles.ranks(self.random.standard_normal(arrivals_ms.size))
            means_ms = quantiles.means_ms(profile.latency_ms)
        repeated = policy.actions[-1]
        capacity_per_s = 1e3 * workers * repeated / means_ms[repeated - 1]
        if rate_per_s >= capacity_per_s:
            raise InfeasibleError(
                f"stage {stage.name}: {workers} workers serve at most {capacity_per_s:.6g} "
                f"items/s, and {rate_per_s:.6g} arrive"
            )
        order = np.argsort(arrivals_ms, kind="stable")
        ends_ms = np.empty_like(arrivals_ms)
        ends_ms[order], batches, busy_ms = _departures(
            arrivals_ms[order],
            np.array(policy.actions),
            longest_wait_ms(policy, profile.latency_ms[policy.max_batch_size - 1]),
            policy.max_batch_size,
            np.ascontiguousarray(profile.latency_ms),
            ratios,
            ranks,
            workers,
        )
        if arrivals_ms.size:
            elapsed_ms = float(ends_ms.max()) - float(arrivals_ms.min())
            energy_mj = profile.energy_mj
            self.stages[stage.name] = StageLoad(
                arrivals_ms.size / batches.sum(),
                busy_ms / (workers * elapsed_ms),
                _without_warm_up(ends_ms - arrivals_ms),
                None if energy_mj is None else float(batches[1:] @ energy_mj) / elapsed_ms,
            )
        return ends_ms


@numba.njit(cache=True, nogil=True)
def _departures(
    arrivals_ms: FloatArray,
    actions: NDArray[np.int64],
    max_wait_ms: float,
    max_size: int,
    latency_ms: FloatArray,
    ratios: FloatArray,
    ranks: FloatArray,
    workers: int,
) -> tuple[FloatArray, NDArray[np.int64], float]:
    """Return the departure time of each item, the batches of each size, and their time in ms.

    Batch ``k`` takes its latency times the entry of its size in `ratios` at ``ranks[k]``.
    """
    count, last = arrivals_ms.size, actions.size - 1
    ends_ms = np.empty(count)
    free_ms = np.zeros(workers)
    busy_ms = 0.0
    batches = np.zeros(latency_ms.size + 1, np.int64)
    head = tail = batch = 0  # the first waiting item, and the first that has not arrived
    while head < count:
        worker = np.argmin(free_ms)
        now_ms = max(free_ms[worker], arrivals_ms[head])
        due_ms = arrivals_ms[head] + max_wait_ms
        while True:
            while tail < count and arrivals_ms[tail] <= now_ms:
                tail += 1
            waiting = tail - head
            size = actions[min(waiting, last)]
            if size == 0 and now_ms >= due_ms:
                size = min(waiting, max_size)
            if size:
                break
            now_ms = min(due_ms, arrivals_ms[tail]) if tail < count else due_ms
        rank = ranks[batch % ranks.size]
        below = int(rank)
        above = min(below + 1, ratios.shape[1] - 1)
        ratio = ratios[size - 1, below]
        ratio += (rank - below) * (ratios[size - 1, above] - ratio)
        batch += 1
        batches[size] += 1
        busy_ms += latency_ms[size - 1] * ratio
        free_ms[worker] = now_ms + latency_ms[size - 1] * ratio
        ends_ms[head : head + size] = free_ms[worker]
        head += size
    return ends_ms, batches, busy_ms
