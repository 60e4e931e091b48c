"""How large the batches of a policy are, apart from when it starts them.

On many devices the batch time has steps: kernels are tiled, inputs are padded. A batch one request
beyond a step takes much longer, and a batch limited to the step, or one that leaves the last few
requests to the next batch, answers more requests in time. So a search for a policy also chooses
among `BatchSizing`: all that wait up to a limit, or the largest efficient size that fits.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from policy.batching_policy import BatchingPolicy
from policy.profile import Profile

# A size is efficient if one more request lowers the throughput by at least this share. Smaller
# falls are noise of the measurement, or save too little.
_MIN_THROUGHPUT_FALL = 0.02
# Of a profile with more steps than this, the ones of the largest fall are searched.
_MAX_STEPS = 8
# Beyond this size, the search of batches that leave requests behind takes long.
_MAX_STEPPED_SIZE = 64


@dataclass(frozen=True)
class BatchSizing:
    """The batch size that a policy starts at each queue length, if it starts one.

    `sizes` go by queue length, from 0 to the largest batch size, which holds for all longer queues.
    """

    sizes: tuple[int, ...]

    @property
    def max_batch_size(self) -> int:
        return self.sizes[-1]

    @property
    def takes_all(self) -> bool:
        """Whether a batch takes all that wait, up to the largest size."""
        return self.sizes == tuple(range(self.max_batch_size + 1))

    def control_limits(self) -> tuple[int, ...]:
        """Return the queue lengths that a batch can take whole."""
        return tuple(q for q, size in enumerate(self.sizes) if q and size == q)

    def policy(self, control_limit: int, max_wait_ms: float | None = None) -> BatchingPolicy:
        sizes = enumerate(self.sizes)
        return BatchingPolicy(
            tuple(size if q >= control_limit else 0 for q, size in sizes), max_wait_ms
        )

    def sizes_batches_of(self, policy: BatchingPolicy) -> bool:
        """Return whether `policy` starts batches of these sizes from its control limit on."""
        limit = policy.control_limit
        return limit <= self.max_batch_size and self.policy(limit).actions == policy.actions

    @classmethod
    def all_up_to(cls, max_batch_size: int) -> "BatchSizing":
        return cls(tuple(range(max_batch_size + 1)))

    @classmethod
    def steps_up_to(cls, max_batch_size: int, steps: tuple[int, ...]) -> "BatchSizing":
        """Make the sizing that takes the largest of `steps` that fits; below the first, all."""
        steps = tuple(sorted({min(step, max_batch_size) for step in (*steps, max_batch_size)}))
        return cls(
            tuple(
                max((step for step in steps if step <= q), default=q)
                for q in range(max_batch_size + 1)
            )
        )


def least_control_limit(profile: Profile, arrival_rate_per_s: float) -> int:
    """Return the least control limit whose batches the event loop keeps up with for sure.

    It is 1 unless there is an event loop beside the device: a device that starts at once may cost
    the event loop more than it has. Where no size keeps up, it is that of the highest throughput.
    """
    if profile.event_loop is None or profile.event_loop.shares_cpu:
        return 1
    best = profile.best_batch_size
    busy_ms = [profile.event_loop.ms_per_request(size) for size in range(1, best + 1)]
    enough = (size for size, ms in enumerate(busy_ms, 1) if 1e-3 * arrival_rate_per_s * ms < 1)
    return next(enough, best)


def efficient_sizes(profile: Profile) -> tuple[int, ...]:
    """Return the batch sizes beyond which one more request lowers the throughput, increasing."""
    throughput = np.arange(1, profile.max_batch_size + 1) / profile.latency_ms
    falls = 1 - throughput[1:] / throughput[:-1]
    steepest = np.argsort(-falls, kind="stable")[:_MAX_STEPS]
    return tuple(sorted(int(i) + 1 for i in steepest if falls[i] >= _MIN_THROUGHPUT_FALL))


def batch_size_limits(profile: Profile) -> tuple[int, ...]:
    """Return the limits on the batch size worth a search, that of the highest throughput first.

    They are the efficient sizes, the powers of two, and the largest size.
    """
    largest = profile.max_batch_size
    powers = (2**i for i in range(largest.bit_length()))
    limits = {*efficient_sizes(profile), *powers, largest} - {profile.best_batch_size}
    return (profile.best_batch_size, *sorted(limits, reverse=True))


def batch_sizings(profile: Profile) -> Iterator[BatchSizing]:
    """Yield the sizings worth a search for the highest rate, or the most requests in time.

    First those that take all, from the limit of the highest throughput on, then those in steps, the
    smallest limit first.
    """
    for limit in batch_size_limits(profile):
        yield BatchSizing.all_up_to(limit)
    yield from _stepped_sizings(profile)


def economic_sizings(profile: Profile) -> Iterator[BatchSizing]:
    """Yield the sizings worth a search for the least power, in the order of `batch_sizings`.

    A limit can only save power at an efficient size, or where a request takes the least energy.
    """
    best, limits = profile.best_batch_size, set(efficient_sizes(profile))
    if profile.energy_mj is not None:
        energy_mj = profile.energy_mj_for_weight(1.0)
        per_request = energy_mj / np.arange(1, profile.max_batch_size + 1)
        limits.add(int(np.flatnonzero(per_request <= per_request.min() * (1 + 1e-12))[-1]) + 1)
    for limit in (best, *sorted(limits - {best}, reverse=True)):
        yield BatchSizing.all_up_to(limit)
    yield from _stepped_sizings(profile)


def _stepped_sizings(profile: Profile) -> Iterator[BatchSizing]:
    steps = efficient_sizes(profile)
    for limit in sorted({*steps, profile.best_batch_size}):
        sizing = BatchSizing.steps_up_to(limit, steps)
        if limit <= _MAX_STEPPED_SIZE and not sizing.takes_all:
            yield sizing
