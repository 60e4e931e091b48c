"""The limits of a batcher, live and simulated. Only `limits_for` derives them from an SLA."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from policy.event_loop import EventLoopCosts
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.try_delays import TryDelays

#: Rows: even on the fastest device, a longer queue is a sign of a mistake.
MAX_QUEUE_ROWS = 4096
#: A request is admitted if it will be done within this share of the SLA's response time. The rest
#: covers parsing, late timers, and batches that take a little longer than their profile.
ADMISSION_SHARE = 0.97
#: The balancer sends as many requests at a time as the event loop handles in this share of the
#: SLA's response time, if it is the event loop that limits the replica.
CONCURRENCY_SHARE = 0.25
#: To meet a deadline, a batch starts earlier than it must by this much, or by this share of its
#: latency if that is more: timers fire late, and batch latency varies.
_SLACK_MS = 2.0
_SLACK_SHARE = 0.1
#: No event loop is faster.
_NO_TIME_MS = 1e-6


@dataclass(frozen=True)
class Limits:
    """The bounds on a batcher besides its policy.

    Attributes
    ----------
    max_age_ms : float
        At this age of the oldest request a free device starts, whatever the policy says.
    max_queue_rows : int
        Rows that may wait, not counting those on the device, nor, for a request, those of lower
        priorities.
    latency_ms : sequence of float
        Batch latency; entry ``b - 1`` is for batch size ``b``, the last for the largest batch.
    head_start_ms : float
        For each step of its priority, a request is queued as if it had arrived this much earlier.
    admit_within_ms : float
        A request is admitted only if it will be done within this time; infinity admits all that
        find room.
    answer_within_ms : float
        A request that a batch would answer later than this after its arrival is dropped; infinity
        drops none.
    try_ms : float
        Time that a request loses at a replica that refuses it.
    retries : int
        Retries after which the balancer gives a request up.
    late_share_allowed : float
        Fraction of the requests that may be late.
    concurrency : int or None
        Requests that the balancer should send at a time; None: as many as come.
    """

    max_age_ms: float
    max_queue_rows: int
    latency_ms: Sequence[float]
    head_start_ms: float = 0.0
    admit_within_ms: float = math.inf
    answer_within_ms: float = math.inf
    try_ms: float = 0.0
    retries: int = 0
    late_share_allowed: float = 0.01
    concurrency: int | None = None

    @cached_property
    def max_batch_size(self) -> int:
        return len(self.latency_ms)

    @cached_property
    def rows_that_fill(self) -> int:
        """Rows that fill a batch, or the waiting room if that is smaller."""
        return min(self.max_batch_size, self.max_queue_rows)

    @cached_property
    def rows_in_time(self) -> int:
        """The most rows of a request that an idle device does in time; 0 if all are let in."""
        if self.admit_within_ms == math.inf:
            return 0
        batches, left_ms = divmod(self.admit_within_ms, self.latency_ms[-1])
        return int(batches) * self.max_batch_size + bisect_right(self.latency_ms, left_ms)

    def batch_latency_ms(self, size: int) -> float:
        """Return how long a batch of `size` rows takes; none is larger than the largest."""
        return self.latency_ms[min(size, len(self.latency_ms)) - 1]

    def early_latency_ms(self, size: int) -> float:
        """Return how long before a deadline a batch of `size` rows must start to meet it."""
        latency_ms = self.batch_latency_ms(size)
        return latency_ms + max(_SLACK_MS, _SLACK_SHARE * latency_ms)


def batch_size_within(profile: Profile, sla: ServiceLevelObjective) -> int:
    """Return the largest batch that a device should run under an SLA.

    A request that arrives just after a batch started waits for that batch and then for its own.
    Among the batch sizes that fit twice into the response time, this is the one of the highest
    throughput; with a longer batch, an overloaded device would answer nobody in time. If none fits
    twice, it is the largest that takes no longer than a batch of one: only requests that arrive
    late in a batch can be admitted then, and the fewer the longer the next batch may take.
    """
    time_ms = ADMISSION_SHARE * sla.response_time_ms
    fitting = int(np.count_nonzero(2 * profile.latency_ms <= time_ms))
    if fitting:
        return profile.up_to(fitting).best_batch_size
    return int(np.count_nonzero(profile.latency_ms <= profile.latency_ms[0]))


def limits_for(
    profile: Profile,
    sla: ServiceLevelObjective,
    delays: TryDelays,
    *,
    max_queue_rows: int | None = None,
    max_age_ms: float | None = None,
    batch_size_limit: int | None = None,
    serve_late: bool = False,
) -> Limits:
    """Return the limits that keep an SLA on a device.

    The SLA is the deadline of every request. A request is admitted if the batch on the device, the
    rows ahead of it and its own batch will be done in time; otherwise it is refused at once, and
    HAProxy tries another replica. Where the profile has an event loop that shares the device's CPU,
    its time is part of a batch's; one beside the device takes what it does per batch off the
    response time, as the answers leave after it.

    Parameters
    ----------
    max_queue_rows : int, optional
        Rows that may wait. By default, the rows of the full batches that fit into the response
        time, at least one full batch.
    max_age_ms : float, optional
        At most, and by default, the time within which admitted requests are to be done, less the
        latency of a full batch.
    batch_size_limit : int, optional
        Batches are no larger than this, than the profile and, unless `serve_late`, than
        `batch_size_within`: admission counts full batches, so they must be such as would run.
    serve_late : bool
        Whether a request is answered late rather than refused. It always is if a batch of one
        already takes too long: nobody would be answered otherwise.
    """
    event_loop = profile.event_loop
    profile = profile.serial()
    answer_ms = 0.0 if profile.event_loop is None else profile.event_loop.batch_ms
    sla = sla.after(delays.round_trip_ms + answer_ms)
    serve_late = serve_late or profile.latency_ms[0] > ADMISSION_SHARE * sla.response_time_ms
    largest = profile.max_batch_size if serve_late else batch_size_within(profile, sla)
    profile = profile.up_to(largest if batch_size_limit is None else min(largest, batch_size_limit))
    full_ms = float(profile.latency_ms[-1])
    time_ms = sla.response_time_ms
    if max_queue_rows is None:
        batches = max(1, int(ADMISSION_SHARE * time_ms / full_ms))
        max_queue_rows = MAX_QUEUE_ROWS
        if not serve_late:
            max_queue_rows = min(batches * profile.max_batch_size, MAX_QUEUE_ROWS)
    latest_start_ms = max(0.0, ADMISSION_SHARE * time_ms - full_ms)
    if max_age_ms is None:
        max_age_ms = latest_start_ms
    return Limits(
        max_age_ms=max_age_ms if serve_late else min(max_age_ms, latest_start_ms),
        max_queue_rows=max_queue_rows,
        latency_ms=profile.latency_ms.tolist(),
        head_start_ms=time_ms,
        admit_within_ms=math.inf if serve_late else ADMISSION_SHARE * time_ms,
        answer_within_ms=math.inf if serve_late else time_ms,
        try_ms=delays.try_ms,
        retries=delays.retries or 0,
        late_share_allowed=sla.late_share_allowed,
        concurrency=None
        if serve_late
        else _concurrency(event_loop, profile.max_batch_size, time_ms),
    )


def _concurrency(event_loop: EventLoopCosts | None, batch_size: int, time_ms: float) -> int | None:
    """Return how many requests the balancer should send at a time; None: as many as come.

    At least two full batches: one on the device, and one that gathers. Where the device limits the
    replica, the waiting room is full before, and the replica refuses at little cost.
    """
    request_ms = 0.0 if event_loop is None else event_loop.ms_per_request(batch_size)
    if request_ms < _NO_TIME_MS:
        return None
    return max(2 * batch_size, math.ceil(CONCURRENCY_SHARE * time_ms / request_ms))
