"""The compiled engine's inner loop: tries in order of time, replicas caught up when touched.

Replicas influence each other through the balancer alone. So nothing that happens inside one needs
to be done before a try looks at it, or the second ends: then it is caught up, event by event, to
that time. That is exact, and spares a queue of events. Tries come from two sources that are each in
order: requests as clients send them, and retries, which all wait the same time.

The decisions are those of `deployments.batcher.core.BatcherCore` for requests of one row without
deadline or priority, those of the arrival rate `deployments.batcher.arrival_rate.ArrivalRate`, in
the same floating-point operations; `tests/simulator/engines/test_engines.py` holds them to these.

The state is in arrays; these are the columns of those with one row per place.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.engines.compiling import compiled, inlined

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# times: end of the batch, or when a free device must be asked again; weight, first and last
# arrival of the rate's estimate; up to when the requests in it are counted; when it was empty.
NEXT_S, RATE_WEIGHT, RATE_FIRST_S, RATE_LAST_S, COUNTED_S, GONE_S = range(6)
TIMES = 6
# numbers: the ring's head, how many of its entries are on the device, how many wait.
HEAD, ON_DEVICE, WAITING, DRAINING, OFFERED, REFUSED, COMPLETED, LATE = range(8)
NUMBERS = 8
# cursor: of the whole fleet.
NEXT_ARRIVAL, RETRY_HEAD, RETRIES_PENDING, READY, ALL_REFUSED, LOGGED = range(6)
CURSORS = 6
# balancer: request-seconds in replicas or held, since when it has replicas, up to when it got.
ONGOING_S, OPEN_SINCE_S, NOW_S = range(3)
BALANCER = 3
# retries: when the next try reaches a replica; and in retry_numbers, tries so far, whom to avoid.
RETRY_SENT_S, RETRY_AT_S = range(2)
RETRY_TRIES, RETRY_AVOID = range(2)
NOBODY = -1

#: Bins of response times, from a microsecond to hours: so many between a power of two (in ms) and
#: the next. Each is at most 1/256 of its value wide.
BINS_PER_OCTAVE = 256
LEAST_EXPONENT, MOST_EXPONENT = -10, 24
BINS = (MOST_EXPONENT - LEAST_EXPONENT) * BINS_PER_OCTAVE

# Of SplitMix64: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014.
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_30, _27, _31, _32 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(32)


class Rules(NamedTuple):
    """What does not change in a run; times in s."""

    rates_per_s: FloatArray  # (cells - 1,): see PolicyTable
    actions: IntArray  # (cells, lengths): the last column holds for all longer queues
    largest: IntArray  # (cells,): largest batch
    longest_wait_s: FloatArray  # (cells,)
    latency_s: FloatArray  # (sizes,)
    energy_j: FloatArray  # (sizes,)
    rate_window_s: float
    request_delay_s: float
    reply_delay_s: float
    try_s: float
    response_time_ms: float  # the client's
    replica_response_time_ms: float  # less the way to the replica and back
    waiting_room: int
    retries: int
    routing: int


class State(NamedTuple):
    """What changes; rows are places, rings are as long as a power of two."""

    times: FloatArray  # (places, TIMES)
    numbers: IntArray  # (places, NUMBERS)
    sent_s: FloatArray  # (places, ring): requests, from the head on
    reached_s: FloatArray  # (places, ring)
    tries: IntArray  # (places, ring)
    ready: IntArray  # (places,): who takes requests, the first cursor[READY]
    arrivals_s: FloatArray  # (requests,)
    retries: FloatArray  # (ring, 2)
    retry_numbers: IntArray  # (ring, 2)
    cursor: IntArray  # (CURSORS,)
    random: NDArray[np.uint64]  # (1,)
    balancer: FloatArray  # (BALANCER,)
    in_time: FloatArray  # (seconds,), as the next three: simulator.engines.counters.FleetCounters
    refused: FloatArray
    energy_j: FloatArray
    histogram: FloatArray
    log: FloatArray  # (requests, 4), or (0, 4): simulator.engines.interface.Answered


@inlined
def draw(state: NDArray[np.uint64], below: int) -> int:
    """Draw one of 0, …, `below` - 1 by SplitMix64; its state, shape (1,), moves on."""
    state[0] += _GAMMA
    z = state[0]
    z = (z ^ (z >> _30)) * _FIRST
    z = (z ^ (z >> _27)) * _SECOND
    z = z ^ (z >> _31)
    return int(np.int64(((z >> _32) * np.uint64(below)) >> _32))


@inlined
def bin_of(response_ms: float) -> int:
    """Give the bin that a response time falls into; what is beyond the ends, the first or last."""
    mantissa, exponent = math.frexp(response_ms)
    octave = exponent - 1 - LEAST_EXPONENT
    if octave < 0 or response_ms <= 0.0:
        return 0
    return min(octave * BINS_PER_OCTAVE + int((2 * mantissa - 1) * BINS_PER_OCTAVE), BINS - 1)


@inlined
def rate_per_s(rules: Rules, state: State, place: int, now_s: float) -> float:
    """Estimate the rate of arrivals at a replica."""
    times = state.times
    if math.isnan(times[place, RATE_FIRST_S]):
        return 0.0
    window_s = rules.rate_window_s
    age_s = max(0.0, now_s - times[place, RATE_LAST_S])
    seen_s = max(now_s - times[place, RATE_FIRST_S], 0.1 * window_s)
    share_seen = -math.expm1(-seen_s / window_s)
    weight = times[place, RATE_WEIGHT] * math.exp(-age_s / window_s)
    return float(weight / (window_s * share_seen))


@inlined
def count_arrival(rules: Rules, state: State, place: int, now_s: float) -> None:
    """Count a try at a replica."""
    times = state.times
    if math.isnan(times[place, RATE_FIRST_S]):
        times[place, RATE_FIRST_S] = now_s
        times[place, RATE_LAST_S] = now_s
    age_s = max(0.0, now_s - times[place, RATE_LAST_S])
    times[place, RATE_WEIGHT] = (
        times[place, RATE_WEIGHT] * math.exp(-age_s / rules.rate_window_s) + 1
    )
    times[place, RATE_LAST_S] = max(times[place, RATE_LAST_S], now_s)
    state.numbers[place, OFFERED] += 1


@inlined
def decide(rules: Rules, state: State, place: int, now_s: float) -> None:
    """Start a batch on a free device if the policy says so; else say when to ask again."""
    times, numbers = state.times, state.numbers
    times[place, NEXT_S] = np.inf
    waiting = numbers[place, WAITING]
    if waiting == 0:
        if numbers[place, DRAINING]:
            times[place, GONE_S] = now_s
        return
    cell = np.searchsorted(rules.rates_per_s, rate_per_s(rules, state, place, now_s), "right")
    size = rules.actions[cell, min(waiting, rules.actions.shape[1] - 1)]
    if size == 0:
        oldest_s = state.reached_s[place, numbers[place, HEAD] & (state.reached_s.shape[1] - 1)]
        due_s = oldest_s + rules.longest_wait_s[cell]
        if now_s < due_s and not numbers[place, DRAINING]:
            times[place, NEXT_S] = due_s
            return
        size = min(waiting, rules.largest[cell])
    numbers[place, ON_DEVICE] = size
    numbers[place, WAITING] -= size
    times[place, NEXT_S] = now_s + rules.latency_s[size - 1]
    second = min(int(now_s), state.energy_j.size - 1)
    state.energy_j[second] += rules.energy_j[size - 1]


@inlined
def count_ongoing(state: State, place: int, now_s: float) -> None:
    """Count the time that requests spent in a replica, up to now."""
    times, numbers = state.times, state.numbers
    inside = numbers[place, WAITING] + numbers[place, ON_DEVICE]
    if inside:  # an unused place has been counted up to no time
        state.balancer[ONGOING_S] += inside * (now_s - times[place, COUNTED_S])
    times[place, COUNTED_S] = now_s


@inlined
def complete(rules: Rules, state: State, place: int, now_s: float) -> None:
    """Answer the requests on a device."""
    count_ongoing(state, place, now_s)
    numbers = state.numbers
    mask = state.sent_s.shape[1] - 1
    size, head = numbers[place, ON_DEVICE], numbers[place, HEAD]
    for i in range(head, head + size):
        sent_s = state.sent_s[place, i & mask]
        response_ms = 1e3 * (now_s + rules.reply_delay_s - sent_s)
        state.histogram[bin_of(response_ms)] += 1
        if response_ms <= rules.response_time_ms:
            state.in_time[int(sent_s)] += 1
        replica_ms = 1e3 * (now_s - state.reached_s[place, i & mask])
        if replica_ms > rules.replica_response_time_ms:
            numbers[place, LATE] += 1
        if state.log.shape[0]:
            row = state.cursor[LOGGED]
            state.log[row, 0] = sent_s
            state.log[row, 1] = response_ms
            state.log[row, 2] = size
            state.log[row, 3] = state.tries[place, i & mask]
            state.cursor[LOGGED] = row + 1
    numbers[place, COMPLETED] += size
    numbers[place, HEAD] = head + size
    numbers[place, ON_DEVICE] = 0


@inlined
def catch_up(rules: Rules, state: State, place: int, now_s: float) -> None:
    """Do what a replica has done by now; with an infinite `now_s`, all it ever does."""
    while state.times[place, NEXT_S] <= now_s:
        event_s = state.times[place, NEXT_S]
        if event_s == np.inf:
            break
        if state.numbers[place, ON_DEVICE]:
            complete(rules, state, place, event_s)
        decide(rules, state, place, event_s)


@inlined
def pick_random(state: State, avoid: int) -> int:
    """Pick a ready replica at random, another than `avoid` if there is one."""
    ready = state.cursor[READY]
    index = draw(state.random, ready)
    if state.ready[index] == avoid and ready > 1:
        index = (index + 1 + draw(state.random, ready - 1)) % ready
    return int(state.ready[index])


@inlined
def load(rules: Rules, state: State, place: int, now_s: float) -> int:
    """Count the requests in a replica now."""
    catch_up(rules, state, place, now_s)
    return int(state.numbers[place, WAITING] + state.numbers[place, ON_DEVICE])


@inlined
def route(rules: Rules, state: State, now_s: float, avoid: int) -> int:
    """Pick the replica for a try; see `simulator.engines.interface.Routing`."""
    ready = state.cursor[READY]
    if rules.routing == 0:
        return pick_random(state, avoid)
    if rules.routing == 1:
        first = pick_random(state, avoid)
        second = pick_random(state, avoid)
        first_load = load(rules, state, first, now_s)
        return second if load(rules, state, second, now_s) < first_load else first
    best, least = NOBODY, 0
    offset = draw(state.random, ready)
    for i in range(ready):
        place = state.ready[(offset + i) % ready]
        if place == avoid and ready > 1:
            continue
        found = load(rules, state, place, now_s)
        if best == NOBODY or found < least:
            best, least = place, found
    return best


@inlined
def try_again(
    rules: Rules, state: State, now_s: float, sent_s: float, tries: int, avoid: int
) -> None:
    """After `tries` tries without an answer, have the balancer try again or give up."""
    cursor = state.cursor
    if tries > rules.retries:
        state.refused[int(sent_s)] += 1
        cursor[ALL_REFUSED] += 1
        return
    last = (cursor[RETRY_HEAD] + cursor[RETRIES_PENDING]) & (state.retries.shape[0] - 1)
    state.retries[last, RETRY_SENT_S] = sent_s
    state.retries[last, RETRY_AT_S] = now_s + rules.try_s
    state.retry_numbers[last, RETRY_TRIES] = tries
    state.retry_numbers[last, RETRY_AVOID] = avoid
    cursor[RETRIES_PENDING] += 1


@inlined
def attempt(
    rules: Rules, state: State, now_s: float, sent_s: float, tries: int, avoid: int
) -> None:
    """Have a request reach a replica, after `tries` tries elsewhere."""
    place = route(rules, state, now_s, avoid)
    catch_up(rules, state, place, now_s)
    count_arrival(rules, state, place, now_s)
    numbers = state.numbers
    waiting = numbers[place, WAITING]
    if waiting and waiting >= rules.waiting_room:
        numbers[place, REFUSED] += 1
        try_again(rules, state, now_s, sent_s, tries + 1, place)
        return
    count_ongoing(state, place, now_s)
    last = (numbers[place, HEAD] + numbers[place, ON_DEVICE] + waiting) & (
        state.sent_s.shape[1] - 1
    )
    state.sent_s[place, last] = sent_s
    state.reached_s[place, last] = now_s
    state.tries[place, last] = tries + 1
    numbers[place, WAITING] = waiting + 1
    if not numbers[place, ON_DEVICE]:
        decide(rules, state, place, now_s)


@inlined
def count_held(rules: Rules, state: State, until_s: float) -> None:
    """Count the time that requests have waited at the balancer for a first replica."""
    since_s = state.balancer[NOW_S]
    held_s = 0.0
    for i in range(state.cursor[RETRIES_PENDING]):
        last = (state.cursor[RETRY_HEAD] + i) & (state.retries.shape[0] - 1)
        held_s += max(0.0, until_s - max(since_s, state.retries[last, RETRY_AT_S]))
    for i in range(state.cursor[NEXT_ARRIVAL], state.arrivals_s.size):
        held_s += max(0.0, until_s - max(since_s, state.arrivals_s[i] + rules.request_delay_s))
    state.balancer[ONGOING_S] += held_s


@compiled
def advance(rules: Rules, state: State, until_s: float) -> bool:
    """Simulate up to `until_s`; False if the ring of retries must be longer to go on."""
    cursor = state.cursor
    ring = state.retries.shape[0]
    open_since_s = state.balancer[OPEN_SINCE_S]
    while cursor[READY]:
        arrival_s = retry_s = np.inf
        if cursor[NEXT_ARRIVAL] < state.arrivals_s.size:
            arrival_s = state.arrivals_s[cursor[NEXT_ARRIVAL]] + rules.request_delay_s
        head = cursor[RETRY_HEAD]
        if cursor[RETRIES_PENDING]:
            retry_s = state.retries[head, RETRY_AT_S]
        if min(arrival_s, retry_s) >= until_s:
            break
        if retry_s <= arrival_s:
            cursor[RETRY_HEAD] = (head + 1) & (ring - 1)
            cursor[RETRIES_PENDING] -= 1
            now_s, sent_s = retry_s, state.retries[head, RETRY_SENT_S]
            tries = state.retry_numbers[head, RETRY_TRIES]
            avoid = state.retry_numbers[head, RETRY_AVOID]
        elif cursor[RETRIES_PENDING] == ring:
            return False
        else:
            now_s, sent_s = arrival_s, state.arrivals_s[cursor[NEXT_ARRIVAL]]
            tries, avoid = 0, NOBODY
            cursor[NEXT_ARRIVAL] += 1
        attempt(rules, state, max(now_s, open_since_s), sent_s, tries, avoid)
    for place in range(state.times.shape[0]):
        catch_up(rules, state, place, until_s)
        if math.isfinite(until_s):
            count_ongoing(state, place, until_s)
    if not cursor[READY] and math.isfinite(until_s):
        count_held(rules, state, until_s)
    state.balancer[NOW_S] = until_s
    return True


@compiled
def lose(rules: Rules, state: State, place: int, now_s: float) -> None:
    """Have the balancer try again what a dead replica had; the ring of retries must hold it."""
    numbers = state.numbers
    mask = state.sent_s.shape[1] - 1
    head = numbers[place, HEAD]
    for i in range(head, head + numbers[place, ON_DEVICE] + numbers[place, WAITING]):
        tries = state.tries[place, i & mask]
        try_again(rules, state, now_s, state.sent_s[place, i & mask], tries, NOBODY)
    numbers[place, ON_DEVICE] = 0
    numbers[place, WAITING] = 0
    state.times[place, NEXT_S] = np.inf
