"""The inner loop of the compiled engine: attempts in time order, replicas caught up when touched.

Replicas affect each other only through the balancer. A replica's own events therefore need no
processing until an attempt touches it or the second ends; then `catch_up` replays them up to then.
The result is exact and needs no event queue. Attempts come from two sources that are each sorted by
time: requests as clients send them, and retries.

Where requests cost the event loop time, it reads each for `loop_request_s`, and sends the answers
of a batch in `loop_batch_s`, first come first served. Whether a replica takes a request is decided
when it arrives, by the time at which the loop will have read it, and by the number of requests in
the replica, as HAProxy's concurrency limit does. A refusal costs the loop nothing.

For requests of one row without deadline or priority, the decisions are those of
`policy.batcher.core.BatcherCore`, and the arrival rate is that of
`policy.batcher.arrival_rate.ArrivalRate`, in the same floating-point operations:
`tests/autoscaler/simulator/engines/test_engines.py` holds a replica equal to one around that core.

The state is kept in arrays; the constants below name their columns.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoscaler.simulator.engines.compiling import compiled, inlined, internal

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# State.times: the end of the batch on the device, or when a free device must decide again; the end
# of that batch by the profile; weight, first and last arrival of the rate estimate; up to when
# ongoing requests are counted; when a draining replica became empty; the share of attempts that
# were refused recently, which is no time; when the event loop has finished its work; when it has
# read the next request; when the two stretches of time began that check the rate estimate; the
# share of attempts refused whatever they may have lost elsewhere.
NEXT_EVENT_S, EXPECTED_END_S, RATE_WEIGHT, RATE_FIRST_S, RATE_LAST_S, COUNTED_S = range(6)
DRAINED_S, REFUSED_SHARE, LOOP_FREE_S, READ_S, EARLIER_S, LATEST_S = range(6, 12)
REFUSED_ANYWAY_SHARE, N_TIMES = 12, 13
# State.counts: where the replica's ring of requests begins, how many of them are on the device,
# how many wait, whether the replica drains, and its counters; where the ring of requests that the
# event loop has not read begins, and how many these are; the attempts in the stretches of
# `EARLIER_S` and `LATEST_S`.
HEAD, ON_DEVICE, WAITING, DRAINING, OFFERED, REFUSED, COMPLETED, LATE, EXPIRED = range(9)
UNREAD_HEAD, UNREAD, EARLIER, LATEST = range(9, 13)
N_COUNTS = 13
# State.fleet_counts: among others the batches started.
NEXT_ARRIVAL, RETRY_HEAD, RETRIES_PENDING, READY, LOGGED, BATCHES = range(6)
N_FLEET_COUNTS = 6
# State.fleet_times: request-seconds in replicas or held, since when any replica is ready, now, and
# for how long the devices and the event loops of all replicas have been busy.
ONGOING_S, OPEN_SINCE_S, NOW_S, DEVICES_BUSY_S, LOOPS_BUSY_S = range(5)
N_FLEET_TIMES = 5
# State.retry_times: when the client sent the request, when the next attempt reaches a replica.
RETRY_SENT_S, RETRY_AT_S = range(2)
# State.retry_counts: attempts so far, and the slot that refused last.
RETRY_ATTEMPTS, RETRY_AVOID = range(2)
NO_SLOT = -1
# State.unread_times: when the client sent the request, when it reached the replica, and is read.
UNREAD_SENT_S, UNREAD_REACHED_S, UNREAD_READ_S = range(3)

#: As in `policy.batcher.admission`: numba's cache takes no constants of another file.
MAX_REFUSED_SHARE, OVERDUE_SHARE, OVERDUE_FACTOR = 0.999, 0.5, 2.0
#: As in `policy.batcher.arrival_rate`.
BOUND_DEVIATIONS, LONGEST_PAUSE, PAUSE_MARGIN_S = 5.0, 5.0, 1e-6

#: Histogram of response times: `BINS_PER_OCTAVE` equal bins between 2**k ms and 2**(k + 1) ms, so
#: that each is at most 1/256 of its value wide. It reaches from a microsecond to hours.
BINS_PER_OCTAVE = 256
MIN_EXPONENT, MAX_EXPONENT = -10, 24
BINS = (MAX_EXPONENT - MIN_EXPONENT) * BINS_PER_OCTAVE

# SplitMix64: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014.
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_30, _27, _31, _32 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(32)
# A 64-bit number without its last 11 bits, times this, is a float in [0, 1).
_11, _2_TO_MINUS_53 = np.uint64(11), 2.0**-53


class Rules(NamedTuple):
    """The constants of a run. Times are in s unless the name says otherwise."""

    rates_per_s: FloatArray  # (cells - 1,): borders between the cells of a PolicyTable
    actions: IntArray  # (cells, lengths): batch sizes; the last column is for all longer queues
    max_batch_size: IntArray  # (cells,)
    max_wait_s: FloatArray  # (cells,)
    latency_s: FloatArray  # (sizes,)
    latency_ms: FloatArray  # (sizes,)
    time_ranks: FloatArray  # (points,): see `draw_ratio`; none where batch times do not vary
    time_ratios: FloatArray  # (sizes, points)
    admit_within_ms: float
    answer_within_ms: float
    try_ms: float
    late_share_allowed: float
    energy_j: FloatArray  # (sizes,)
    idle_power_w: float
    has_loop: bool
    loop_request_s: float
    loop_batch_s: float
    rate_window_s: float
    rate_horizon_s: float
    request_delay_s: float
    reply_delay_s: float
    try_s: float
    response_time_ms: float  # of the client's SLA
    replica_response_time_ms: float  # that minus the delays to the replica and back
    max_queue_rows: int
    concurrency: int  # in a replica, if requests cost the event loop time
    retries: int
    routing: int  # index into Routing


class State(NamedTuple):
    """The variables of a run. The length of every ring is a power of two."""

    times: FloatArray  # (slots, N_TIMES)
    counts: IntArray  # (slots, N_COUNTS)
    sent_s: FloatArray  # (slots, ring): the requests in a replica, from its HEAD on
    reached_s: FloatArray  # (slots, ring)
    attempts: IntArray  # (slots, ring)
    unread_times: FloatArray  # (slots, ring, 3): unread requests, from UNREAD_HEAD on
    unread_attempts: IntArray  # (slots, ring)
    ready: IntArray  # (slots,): the slots that take requests; the first fleet_counts[READY] count
    arrivals_s: FloatArray  # (requests,)
    retry_times: FloatArray  # (ring, 2)
    retry_counts: IntArray  # (ring, 2)
    fleet_counts: IntArray  # (N_FLEET_COUNTS,)
    fleet_times: FloatArray  # (N_FLEET_TIMES,)
    random: NDArray[np.uint64]  # (1,): the balancer's stream of random numbers
    batch_random: NDArray[np.uint64]  # (slots,): the stream of each replica's batch times
    in_time: FloatArray  # (seconds,); this and the next three: FleetCounters
    refused: FloatArray
    energy_j: FloatArray
    histogram: FloatArray
    log: FloatArray  # (requests, 4), or (0, 4) without a log: AnsweredRequest


@inlined
def random_bits(streams: NDArray[np.uint64], stream: int) -> np.uint64:
    """Return the next 64 random bits of one of the SplitMix64 generators."""
    streams[stream] += _GAMMA
    z = streams[stream]
    z = (z ^ (z >> _30)) * _MIX_1
    z = (z ^ (z >> _27)) * _MIX_2
    return np.uint64(z ^ (z >> _31))


@inlined
def draw(state: NDArray[np.uint64], below: int) -> int:
    """Draw one of 0, …, `below` - 1 from the generator with this state, shape (1,)."""
    return int(np.int64(((random_bits(state, 0) >> _32) * np.uint64(below)) >> _32))


@inlined
def draw_ratio(
    ranks: FloatArray, ratios: FloatArray, size: int, streams: NDArray[np.uint64], stream: int
) -> float:
    """Draw the time of a batch, as a ratio to the profile's, by inverting its distribution.

    `ratios[size - 1, i]` is the ratio of all ranks from `ranks[i - 1]` to `ranks[i]`.
    """
    rank = float(random_bits(streams, stream) >> _11) * _2_TO_MINUS_53
    point = int(np.searchsorted(ranks, rank, "right"))
    return float(ratios[size - 1, min(point, ranks.size - 1)])


@inlined
def bin_of(response_ms: float) -> int:
    """Return the histogram bin of a response time; times out of range count in an end bin."""
    mantissa, exponent = math.frexp(response_ms)
    octave = exponent - 1 - MIN_EXPONENT
    if octave < 0 or response_ms <= 0.0:
        return 0
    return min(octave * BINS_PER_OCTAVE + int((2 * mantissa - 1) * BINS_PER_OCTAVE), BINS - 1)


@internal
def recent_per_s(rules: Rules, state: State, slot: int) -> float:
    """Estimate the rate at the last attempt, at most the bound of the recent attempts."""
    times, last_s = state.times, state.times[slot, RATE_LAST_S]
    window_s = rules.rate_window_s
    seen_s = max(last_s - times[slot, RATE_FIRST_S], 0.1 * window_s)
    share_seen = -math.expm1(-seen_s / window_s)
    per_s = times[slot, RATE_WEIGHT] / (window_s * share_seen)
    counted = state.counts[slot, EARLIER] + state.counts[slot, LATEST]
    time_s = last_s - times[slot, EARLIER_S]
    expected = per_s * time_s
    missing = expected - counted
    if missing <= 0 or missing * missing <= BOUND_DEVIATIONS**2 * expected:
        return float(per_s)
    spread = BOUND_DEVIATIONS * math.sqrt(counted + BOUND_DEVIATIONS**2 / 4)
    return float((counted + BOUND_DEVIATIONS**2 / 2 + spread) / time_s)


@internal
def count_arrival(rules: Rules, state: State, slot: int, now_s: float) -> None:
    """Count an attempt that reaches a replica."""
    times = state.times
    if math.isnan(times[slot, RATE_FIRST_S]):
        times[slot, RATE_FIRST_S] = now_s
        times[slot, RATE_LAST_S] = now_s
        times[slot, EARLIER_S] = now_s
        times[slot, LATEST_S] = now_s
    age_s = max(0.0, now_s - times[slot, RATE_LAST_S])
    times[slot, RATE_WEIGHT] = times[slot, RATE_WEIGHT] * math.exp(-age_s / rules.rate_window_s) + 1
    times[slot, RATE_LAST_S] = max(times[slot, RATE_LAST_S], now_s)
    counts = state.counts
    if now_s - times[slot, LATEST_S] >= rules.rate_horizon_s:
        times[slot, EARLIER_S], counts[slot, EARLIER] = times[slot, LATEST_S], counts[slot, LATEST]
        times[slot, LATEST_S], counts[slot, LATEST] = now_s, 0
    counts[slot, LATEST] += 1
    counts[slot, OFFERED] += 1


@internal
def drop_expired(rules: Rules, state: State, slot: int, now_s: float, done_s: float) -> None:
    """Drop the waiting requests that a batch done at `done_s` would answer too late."""
    counts = state.counts
    mask = state.reached_s.shape[1] - 1
    oldest_s = done_s - 1e-3 * rules.answer_within_ms
    while counts[slot, WAITING]:
        head = counts[slot, HEAD] & mask
        if state.reached_s[slot, head] >= oldest_s:
            break
        count_ongoing(state, slot, now_s)
        state.refused[int(state.sent_s[slot, head])] += 1
        counts[slot, EXPIRED] += 1
        counts[slot, LATE] += 1
        counts[slot, HEAD] += 1
        counts[slot, WAITING] -= 1


@internal
def time_lost_in_attempts_ms(rules: Rules, state: State, slot: int) -> float:
    """Return an upper limit of the time that nearly all requests lost to earlier refusals."""
    share = state.times[slot, REFUSED_SHARE]
    refused_anyway = state.times[slot, REFUSED_ANYWAY_SHARE]
    if min(share, refused_anyway) <= rules.late_share_allowed:
        return 0.0
    attempts = math.log(rules.late_share_allowed) / math.log(min(share, MAX_REFUSED_SHARE))
    spare_ms = max(0.0, rules.admit_within_ms - rules.latency_ms[-1])
    return float(min(rules.try_ms * min(attempts, float(rules.retries)), spare_ms / 2))


@internal
def is_expired(rules: Rules, now_s: float, reached_s: float, rows: int) -> bool:
    """Return whether a request is too late by the time it is read, even for a free device."""
    done_s = now_s + rules.latency_s[min(rows, rules.latency_s.size) - 1]
    return bool(reached_s < min(now_s, done_s - 1e-3 * rules.answer_within_ms))


@internal
def processing_ms(rules: Rules, rows: int) -> float:
    """Return the device's time for `rows` requests, in batches of the largest size."""
    batches, rest = divmod(rows, rules.latency_ms.size)
    done_ms = batches * rules.latency_ms[-1]
    if rest:
        done_ms += rules.latency_ms[rest - 1]
    return float(done_ms)


@internal
def has_room(
    rules: Rules, state: State, slot: int, now_s: float, reached_s: float, rows: int, lost_ms: float
) -> bool:
    """Return whether `rows` more requests fit into the queue and will be in time.

    They count as if they had lost `lost_ms` before.
    """
    counts = state.counts
    waiting = counts[slot, WAITING]
    if waiting and waiting + rows > rules.max_queue_rows:
        return False
    busy = counts[slot, ON_DEVICE] > 0
    if rules.admit_within_ms == np.inf:
        return True
    if not (waiting or busy):
        alone_ms = processing_ms(rules, rows)
        if alone_ms <= rules.admit_within_ms:
            return bool(alone_ms <= rules.admit_within_ms - 1e3 * (now_s - reached_s))
        return not is_expired(rules, now_s, reached_s, rows)
    size = rules.latency_ms.size
    done = waiting + rows
    if busy:  # later arrivals may fill up the last batch
        done = -(-done // size) * size
    done_ms = processing_ms(rules, done)
    if not waiting and done_ms > rules.admit_within_ms:
        return not is_expired(rules, now_s, reached_s, rows)
    free_s = state.times[slot, EXPECTED_END_S]
    start_s = max(now_s, free_s) if busy else now_s
    if busy and now_s > free_s + 1e-3 * OVERDUE_SHARE * rules.latency_ms[-1]:
        start_s += OVERDUE_FACTOR * (now_s - free_s)
    within_ms = rules.admit_within_ms - lost_ms
    return bool(start_s + 1e-3 * done_ms <= reached_s + 1e-3 * within_ms)


@inlined
def is_draining(state: State, slot: int) -> bool:
    """Return whether the queue starts without waiting, because no more requests will come."""
    return bool(state.counts[slot, DRAINING] and not state.counts[slot, UNREAD])


@internal
def inside(state: State, slot: int) -> int:
    counts = state.counts
    return int(counts[slot, WAITING] + counts[slot, ON_DEVICE] + counts[slot, UNREAD])


@internal
def count_drained(state: State, slot: int, now_s: float) -> None:
    """Record when a draining replica becomes empty."""
    if state.counts[slot, DRAINING] and not inside(state, slot):
        state.times[slot, DRAINED_S] = max(now_s, state.times[slot, LOOP_FREE_S])


@inlined
def decide(rules: Rules, state: State, slot: int, now_s: float) -> None:
    """Start a batch on a free device if the policy says so, or set when to decide again."""
    times, counts = state.times, state.counts
    times[slot, NEXT_EVENT_S] = np.inf
    waiting = counts[slot, WAITING]
    if waiting == 0:
        count_drained(state, slot, now_s)
        return
    at_last_per_s = recent_per_s(rules, state, slot)
    arrivals_per_s = at_last_per_s
    pause_s = now_s - times[slot, RATE_LAST_S]
    if pause_s * arrivals_per_s > LONGEST_PAUSE:
        arrivals_per_s = 1 / pause_s
    cell = np.searchsorted(rules.rates_per_s, arrivals_per_s, "right")
    size = rules.actions[cell, min(waiting, rules.actions.shape[1] - 1)]
    if size == 0:
        oldest_s = state.reached_s[slot, counts[slot, HEAD] & (state.reached_s.shape[1] - 1)]
        due_s = oldest_s + rules.max_wait_s[cell]
        if now_s < due_s and not is_draining(state, slot):
            if cell:
                pause_s = max(LONGEST_PAUSE / at_last_per_s, 1 / rules.rates_per_s[cell - 1])
                due_s = min(due_s, times[slot, RATE_LAST_S] + pause_s + PAUSE_MARGIN_S)
            times[slot, NEXT_EVENT_S] = due_s
            return
        size = min(waiting, rules.max_batch_size[cell])
    drop_expired(rules, state, slot, now_s, now_s + rules.latency_s[size - 1])
    size = min(size, counts[slot, WAITING])
    if size == 0:
        count_drained(state, slot, now_s)
        return
    counts[slot, ON_DEVICE] = size
    counts[slot, WAITING] -= size
    batch_s = rules.latency_s[size - 1]
    times[slot, EXPECTED_END_S] = now_s + batch_s
    if rules.time_ranks.size:
        ranks, ratios = rules.time_ranks, rules.time_ratios
        batch_s *= draw_ratio(ranks, ratios, size, state.batch_random, slot)
    times[slot, NEXT_EVENT_S] = now_s + batch_s
    second = min(int(now_s), state.energy_j.size - 1)
    state.energy_j[second] += rules.energy_j[size - 1] - rules.idle_power_w * batch_s
    state.fleet_times[DEVICES_BUSY_S] += batch_s
    state.fleet_counts[BATCHES] += 1


@internal
def count_ongoing(state: State, slot: int, now_s: float) -> None:
    """Add the time that requests have spent in a replica since the last call."""
    times, requests = state.times, inside(state, slot)
    if requests:  # COUNTED_S of a slot never used is infinite
        state.fleet_times[ONGOING_S] += requests * (now_s - times[slot, COUNTED_S])
    times[slot, COUNTED_S] = now_s


@internal
def answer(
    rules: Rules, state: State, slot: int, now_s: float,
    sent_s: float, reached_s: float, attempts: int, batch_size: int,
) -> None:  # fmt: skip
    counts = state.counts
    response_ms = 1e3 * (now_s + rules.reply_delay_s - sent_s)
    state.histogram[bin_of(response_ms)] += 1
    if response_ms <= rules.response_time_ms:
        state.in_time[int(sent_s)] += 1
    if 1e3 * (now_s - reached_s) > rules.replica_response_time_ms:
        counts[slot, LATE] += 1
    counts[slot, COMPLETED] += 1
    if state.log.shape[0]:
        row = state.fleet_counts[LOGGED]
        state.log[row, 0] = sent_s
        state.log[row, 1] = response_ms
        state.log[row, 2] = batch_size
        state.log[row, 3] = attempts
        state.fleet_counts[LOGGED] = row + 1


@internal
def complete(rules: Rules, state: State, slot: int, now_s: float) -> None:
    """End the batch on a device; its answers leave at once, or when the event loop sends them."""
    count_ongoing(state, slot, now_s)
    counts = state.counts
    mask = state.sent_s.shape[1] - 1
    size, head = counts[slot, ON_DEVICE], counts[slot, HEAD]
    answered_s = now_s
    if rules.has_loop:
        answered_s = use_loop(state, slot, now_s, rules.loop_batch_s)
        state.fleet_times[ONGOING_S] += size * (answered_s - now_s)
    for i in range(head, head + size):
        sent_s, reached_s = state.sent_s[slot, i & mask], state.reached_s[slot, i & mask]
        answer(
            rules, state, slot, answered_s, sent_s, reached_s, state.attempts[slot, i & mask], size
        )
    counts[slot, HEAD] = head + size
    counts[slot, ON_DEVICE] = 0


@internal
def use_loop(state: State, slot: int, now_s: float, work_s: float) -> float:
    """Add work to the event loop; return when it will be done."""
    done_s = max(now_s, state.times[slot, LOOP_FREE_S]) + work_s
    state.times[slot, LOOP_FREE_S] = done_s
    state.fleet_times[LOOPS_BUSY_S] += work_s
    return float(done_s)


@internal
def retry(
    rules: Rules, state: State, now_s: float, sent_s: float, attempts: int, avoid: int
) -> None:
    """Schedule another attempt after `attempts` without an answer, or give the request up."""
    fleet_counts = state.fleet_counts
    if attempts > rules.retries:
        state.refused[int(sent_s)] += 1
        return
    last = (fleet_counts[RETRY_HEAD] + fleet_counts[RETRIES_PENDING]) & (
        state.retry_times.shape[0] - 1
    )
    state.retry_times[last, RETRY_SENT_S] = sent_s
    state.retry_times[last, RETRY_AT_S] = now_s + rules.try_s
    state.retry_counts[last, RETRY_ATTEMPTS] = attempts
    state.retry_counts[last, RETRY_AVOID] = avoid
    fleet_counts[RETRIES_PENDING] += 1


@inlined
def count_share(state: State, slot: int, column: int, refused: float) -> None:
    """Count an attempt, 1 if it was refused, in a share of the recent ones."""
    times = state.times
    times[slot, column] += (refused - times[slot, column]) * 1 / times[slot, RATE_WEIGHT]


@internal
def refuse(
    rules: Rules, state: State, slot: int, now_s: float,
    sent_s: float, reached_s: float, attempts: int, is_read: bool, had_room: bool,
) -> None:  # fmt: skip
    """Refuse a request. It is retried elsewhere, unless it was read or is too late."""
    count_arrival(rules, state, slot, now_s)
    counts = state.counts
    if is_expired(rules, now_s, reached_s, 1):
        state.refused[int(sent_s)] += 1
        counts[slot, EXPIRED] += 1
        counts[slot, LATE] += 1
        return
    count_share(state, slot, REFUSED_SHARE, 1.0)
    count_share(state, slot, REFUSED_ANYWAY_SHARE, 0.0 if had_room else 1.0)
    counts[slot, REFUSED] += 1
    only_replica = state.fleet_counts[READY] == 1 and state.ready[0] == slot
    if only_replica or is_read:  # HAProxy does not retry at the only replica
        state.refused[int(sent_s)] += 1
    else:
        retry(rules, state, now_s, sent_s, attempts, slot)


@internal
def admit(
    rules: Rules, state: State, slot: int, now_s: float,
    sent_s: float, reached_s: float, attempts: int, is_read: bool,
) -> None:  # fmt: skip
    """Queue a request that reached its replica at `reached_s`, or refuse it."""
    counts = state.counts
    waiting = counts[slot, WAITING]
    lost_ms = time_lost_in_attempts_ms(rules, state, slot)
    if not has_room(rules, state, slot, now_s, reached_s, 1, lost_ms):
        had_room = has_room(rules, state, slot, now_s, reached_s, 1, 0.0)
        refuse(rules, state, slot, now_s, sent_s, reached_s, attempts, is_read, had_room)
        return
    count_arrival(rules, state, slot, now_s)
    count_share(state, slot, REFUSED_SHARE, 0.0)
    count_share(state, slot, REFUSED_ANYWAY_SHARE, 0.0)
    count_ongoing(state, slot, now_s)
    last = (counts[slot, HEAD] + counts[slot, ON_DEVICE] + waiting) & (state.sent_s.shape[1] - 1)
    state.sent_s[slot, last] = sent_s
    state.reached_s[slot, last] = reached_s
    state.attempts[slot, last] = attempts
    counts[slot, WAITING] = waiting + 1
    if not counts[slot, ON_DEVICE]:
        decide(rules, state, slot, now_s)


@internal
def reach(
    rules: Rules, state: State, slot: int, now_s: float, sent_s: float, attempts: int
) -> None:
    """Read a request on the event loop, or refuse it if it would be too late."""
    counts, times = state.counts, state.times
    unread = counts[slot, UNREAD]
    read_s = max(now_s, times[slot, LOOP_FREE_S]) + rules.loop_request_s
    is_full = inside(state, slot) >= rules.concurrency
    since_s = now_s - (read_s - now_s)  # its answer waits in the same queue
    lost_ms = time_lost_in_attempts_ms(rules, state, slot)
    if is_full or not has_room(rules, state, slot, read_s, since_s, unread + 1, lost_ms):
        had_room = not is_full and has_room(rules, state, slot, read_s, since_s, unread + 1, 0.0)
        refuse(rules, state, slot, now_s, sent_s, now_s, attempts, False, had_room)
        return
    count_ongoing(state, slot, now_s)
    read_s = use_loop(state, slot, now_s, rules.loop_request_s)
    last = (counts[slot, UNREAD_HEAD] + unread) & (state.unread_attempts.shape[1] - 1)
    state.unread_times[slot, last, UNREAD_SENT_S] = sent_s
    state.unread_times[slot, last, UNREAD_REACHED_S] = now_s
    state.unread_times[slot, last, UNREAD_READ_S] = read_s
    state.unread_attempts[slot, last] = attempts
    counts[slot, UNREAD] = unread + 1
    if not unread:
        times[slot, READ_S] = read_s


@internal
def read(rules: Rules, state: State, slot: int) -> None:
    """Admit the next request that the event loop has read."""
    counts, times = state.counts, state.times
    now_s, mask = times[slot, READ_S], state.unread_attempts.shape[1] - 1
    count_ongoing(state, slot, now_s)
    head = counts[slot, UNREAD_HEAD]
    counts[slot, UNREAD_HEAD] += 1
    counts[slot, UNREAD] -= 1
    times[slot, READ_S] = np.inf
    if counts[slot, UNREAD]:
        times[slot, READ_S] = state.unread_times[slot, (head + 1) & mask, UNREAD_READ_S]
    sent_s = state.unread_times[slot, head & mask, UNREAD_SENT_S]
    reached_s = state.unread_times[slot, head & mask, UNREAD_REACHED_S]
    attempts = state.unread_attempts[slot, head & mask]
    admit(rules, state, slot, now_s, sent_s, reached_s, attempts, True)
    if is_draining(state, slot) and not counts[slot, ON_DEVICE]:
        decide(rules, state, slot, now_s)


@internal
def catch_up(rules: Rules, state: State, slot: int, now_s: float) -> None:
    """Replay a replica's events up to now, or all of them if `now_s` is infinite."""
    times = state.times
    while min(times[slot, NEXT_EVENT_S], times[slot, READ_S]) <= now_s:
        event_s = times[slot, NEXT_EVENT_S]
        if rules.has_loop and times[slot, READ_S] < event_s:
            read(rules, state, slot)
            continue
        if event_s == np.inf:
            break
        if state.counts[slot, ON_DEVICE]:
            complete(rules, state, slot, event_s)
        decide(rules, state, slot, event_s)


@internal
def pick_random(state: State, avoid: int) -> int:
    """Pick a ready replica at random, other than `avoid` if there is another."""
    ready = state.fleet_counts[READY]
    index = draw(state.random, ready)
    if state.ready[index] == avoid and ready > 1:
        index = (index + 1 + draw(state.random, ready - 1)) % ready
    return int(state.ready[index])


@internal
def load(rules: Rules, state: State, slot: int, now_s: float) -> int:
    catch_up(rules, state, slot, now_s)
    return inside(state, slot)


@internal
def route(rules: Rules, state: State, now_s: float, avoid: int) -> int:
    """Pick the replica for an attempt; see `autoscaler.simulator.engines.interface.Routing`."""
    ready = state.fleet_counts[READY]
    if rules.routing == 0:
        return pick_random(state, avoid)
    if rules.routing == 1:
        first = pick_random(state, avoid)
        second = pick_random(state, avoid)
        first_load = load(rules, state, first, now_s)
        return second if load(rules, state, second, now_s) < first_load else first
    best, best_load = NO_SLOT, 0
    offset = draw(state.random, ready)
    for i in range(ready):
        slot = state.ready[(offset + i) % ready]
        if slot == avoid and ready > 1:
            continue
        slot_load = load(rules, state, slot, now_s)
        if best == NO_SLOT or slot_load < best_load:
            best, best_load = slot, slot_load
    return best


@internal
def attempt(
    rules: Rules, state: State, now_s: float, sent_s: float, attempts: int, avoid: int
) -> None:
    """Send a request to a replica, after `attempts` others."""
    slot = route(rules, state, now_s, avoid)
    catch_up(rules, state, slot, now_s)
    if rules.has_loop:
        reach(rules, state, slot, now_s, sent_s, attempts + 1)
    else:
        admit(rules, state, slot, now_s, sent_s, now_s, attempts + 1, False)


@internal
def count_held(rules: Rules, state: State, until_s: float) -> None:
    """Add the time for which requests have been held since the last `advance`."""
    since_s = state.fleet_times[NOW_S]
    held_s = 0.0
    for i in range(state.fleet_counts[RETRIES_PENDING]):
        entry = (state.fleet_counts[RETRY_HEAD] + i) & (state.retry_times.shape[0] - 1)
        held_s += max(0.0, until_s - max(since_s, state.retry_times[entry, RETRY_AT_S]))
    for i in range(state.fleet_counts[NEXT_ARRIVAL], state.arrivals_s.size):
        held_s += max(0.0, until_s - max(since_s, state.arrivals_s[i] + rules.request_delay_s))
    state.fleet_times[ONGOING_S] += held_s


@compiled
def advance(rules: Rules, state: State, until_s: float) -> bool:
    """Simulate up to `until_s`; return False if a ring must grow first."""
    fleet_counts = state.fleet_counts
    ring = state.retry_times.shape[0]
    open_since_s = state.fleet_times[OPEN_SINCE_S]
    while True:
        arrival_s = retry_s = np.inf
        head = fleet_counts[RETRY_HEAD]
        if fleet_counts[READY]:
            if fleet_counts[NEXT_ARRIVAL] < state.arrivals_s.size:
                arrival_s = state.arrivals_s[fleet_counts[NEXT_ARRIVAL]] + rules.request_delay_s
            if fleet_counts[RETRIES_PENDING]:
                retry_s = state.retry_times[head, RETRY_AT_S]
        if min(arrival_s, retry_s) >= until_s:
            break
        if retry_s <= arrival_s:
            fleet_counts[RETRY_HEAD] = (head + 1) & (ring - 1)
            fleet_counts[RETRIES_PENDING] -= 1
            now_s, sent_s = retry_s, state.retry_times[head, RETRY_SENT_S]
            attempts = state.retry_counts[head, RETRY_ATTEMPTS]
            avoid = state.retry_counts[head, RETRY_AVOID]
        elif fleet_counts[RETRIES_PENDING] == ring:
            return False
        else:
            now_s, sent_s = arrival_s, state.arrivals_s[fleet_counts[NEXT_ARRIVAL]]
            attempts, avoid = 0, NO_SLOT
            fleet_counts[NEXT_ARRIVAL] += 1
        attempt(rules, state, max(now_s, open_since_s), sent_s, attempts, avoid)
    for slot in range(state.times.shape[0]):
        catch_up(rules, state, slot, until_s)
        if math.isfinite(until_s):
            count_ongoing(state, slot, until_s)
    if not fleet_counts[READY] and math.isfinite(until_s):
        count_held(rules, state, until_s)
    state.fleet_times[NOW_S] = until_s
    return True


@compiled
def kill(rules: Rules, state: State, slot: int, now_s: float) -> None:
    """Retry the requests of a replica that died; the ring of retries must have room for them."""
    counts = state.counts
    mask = state.sent_s.shape[1] - 1
    head = counts[slot, HEAD]
    for i in range(head, head + counts[slot, ON_DEVICE] + counts[slot, WAITING]):
        attempts = state.attempts[slot, i & mask]
        retry(rules, state, now_s, state.sent_s[slot, i & mask], attempts, NO_SLOT)
    mask = state.unread_attempts.shape[1] - 1
    head = counts[slot, UNREAD_HEAD]
    for i in range(head, head + counts[slot, UNREAD]):
        sent_s = state.unread_times[slot, i & mask, UNREAD_SENT_S]
        retry(rules, state, now_s, sent_s, state.unread_attempts[slot, i & mask], NO_SLOT)
    counts[slot, ON_DEVICE] = 0
    counts[slot, WAITING] = 0
    counts[slot, UNREAD] = 0
    state.times[slot, NEXT_EVENT_S] = np.inf
    state.times[slot, READ_S] = np.inf
