"""The compiled loop that follows requests through the event loop and the device, for `sample`.

Batch by batch: arrays in, arrays out; nothing is drawn here.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_F = TypeVar("_F", bound=Callable[..., Any])
_njit: Any = numba.njit

_ROUNDING = 1e-9
#: The most requests that may wait, those at the event loop included; a power of two.
MAX_BACKLOG = 1 << 16


def _compiled(function: _F) -> _F:
    return cast(_F, _njit(cache=True, nogil=True)(function))


@_compiled
def _room(before_end_ms: float, max_queue_rows: int, rules: FloatArray) -> int:
    """Return how many requests may wait at a time before the end of the batch in service."""
    room = max_queue_rows
    for rule in range(rules.shape[0]):
        within_ms, size, full_ms = rules[rule]
        allowed = 1  # one that takes too long on an idle device may wait if nothing else does
        if full_ms <= within_ms:
            batches = np.floor((within_ms - before_end_ms) / full_ms + _ROUNDING)
            allowed = max(0, int(size * batches))
        if room < 0 or allowed < room:
            room = allowed
    return room


@_compiled
def follow_requests(
    gaps: FloatArray,
    uniforms: FloatArray,
    steps: FloatArray,
    ranks: FloatArray,
    arrivals_per_ms: float,
    queue_lengths: IntArray,
    weights: FloatArray,
    first_draws: IntArray,
    window: IntArray,
    request_ms: float,
    batch_ms: float,
    actions: IntArray,
    largest: int,
    max_wait_ms: float,
    max_queue_rows: int,
    rules: FloatArray,
    batch_times_ms: FloatArray,
    ratios: FloatArray,
    responses_ms: FloatArray,
    ends: IntArray,
    refused: IntArray,
    batches: IntArray,
    waits: FloatArray,
) -> tuple[int, bool]:
    """Follow paths of a device, each from the start of a batch, and the requests of a window.

    Parameters
    ----------
    gaps, uniforms : ndarray of float, shape (draws,)
        Times between arrivals at the rate 1, and numbers below 1 that draw the times of batches.
        Used over and over; their number is a power of two.
    steps : ndarray of float, shape (first batches,)
        Of the first batches of a path, the numbers go up by this from path to path, modulo 1: they
        are spread evenly.
    ranks : ndarray of float, shape (ranks,)
        A batch's rank among the points of `ratios`, by its number, spread evenly.
    queue_lengths : ndarray of int, shape (paths,)
        Requests that wait as a path's first batch starts; their timers have run off.
    weights : ndarray of float, shape (paths,)
        What each path counts in `waits`.
    first_draws : ndarray of int, shape (paths,)
        The draws at which each path begins.
    window : ndarray of int, shape (4,)
        Batch starts and arrivals before the window of each path, and in it, at least.
    request_ms, batch_ms : float
        The event loop's time per request, and per batch when it has ended.
    max_wait_ms : float
        Since the request arrived; infinite without a timer.
    max_queue_rows : int
        Requests that may wait for the device; negative: any number.
    rules : ndarray of float, shape (rules, 3)
        Limits of the room while a batch runs: full batches of (size) and (time) must end within
        (the first).
    ratios : ndarray of float, shape (max_batch_size, points)
        Of the time of a batch to `batch_times_ms`, by rank; one point for constant times.
    responses_ms : ndarray of float, shape (n,), output
        Of the requests accepted in the window of each path. Paths beyond the n are left out.
    ends, refused : ndarray of int, shape (paths,), output
        End of each path's part of `responses_ms`, and the requests refused in its window.
    batches : ndarray of int, shape (paths, largest + 1), output
        Batches started in the window, by size.
    waits : ndarray of float, shape (len(actions), len(actions)), output
        How often a free device with a queue of (row) waited for a queue of (column).

    Returns
    -------
    keeps_up : bool
        Whether the backlog stayed below `MAX_BACKLOG`.
    """
    infinite = np.inf
    ms_per_arrival = 1 / arrivals_per_ms
    last = actions.size - 1
    draws = gaps.size - 1
    mask = MAX_BACKLOG - 1
    has_event_loop = request_ms > 0 or batch_ms > 0
    limited = max_queue_rows >= 0 or rules.shape[0] > 0
    varying = ratios.shape[1] > 1
    arrived_ms, ready_ms = np.empty(MAX_BACKLOG), np.empty(MAX_BACKLOG)  # read, not handed on
    queue_ms = np.empty(MAX_BACKLOG)  # arrivals of those that wait for the device
    count = 0
    for path in range(queue_lengths.size):
        draw = first_draws[path]
        old = queue_lengths[path]
        read, handed = 0, 0
        queued, taken = 0, 0
        now_ms, event_loop_free_ms = 0.0, 0.0
        next_ms = gaps[draw & draws] * ms_per_arrival
        begin_ms, end_window_ms = infinite, infinite
        starts, first_start = 0, 0
        waited_at = -1
        size = actions[min(old, last)]
        if size == 0:
            size = min(old, largest)
        while True:
            # A batch of `size` starts.
            waiting = old + queued - taken
            if begin_ms == infinite and starts >= window[0] and read >= window[1]:
                begin_ms, first_start = now_ms, starts
                while not has_event_loop and not limited and next_ms < now_ms:
                    queue_ms[queued & mask] = next_ms
                    queued += 1
                    read += 1
                    draw += 1
                    next_ms += gaps[draw & draws] * ms_per_arrival
                waiting = old + queued - taken
            elif (
                begin_ms < infinite
                and end_window_ms == infinite
                and starts >= first_start + window[2]
                and read >= window[1] + window[3]
            ):
                end_window_ms = now_ms
            if end_window_ms < infinite and old == 0:
                oldest_ms = next_ms
                if queued > taken:
                    oldest_ms = queue_ms[taken & mask]
                elif read > handed and has_event_loop:
                    oldest_ms = arrived_ms[handed & mask]
                if oldest_ms > end_window_ms:
                    break
            in_window = begin_ms < infinite and end_window_ms == infinite
            if in_window:
                batches[path, size] += 1
                if waited_at >= 0:
                    waits[waited_at, min(waiting, last)] += weights[path]
            starts += 1
            batch_time_ms = batch_times_ms[size - 1]
            if varying:
                if starts <= steps.size:
                    number = path * steps[starts - 1] % 1.0
                else:
                    number = uniforms[(draw + starts) & draws]
                rank = ranks[int(number * ranks.size)]
                below = int(rank)
                above = min(below + 1, ratios.shape[1] - 1)
                ratio = ratios[size - 1, below]
                batch_time_ms *= ratio + (rank - below) * (ratios[size - 1, above] - ratio)
            end_ms = now_ms + batch_time_ms
            of_old = min(size, old)
            old -= of_old
            first_of_batch, taken = taken, taken + size - of_old
            # The event loop reads what arrives meanwhile. Far from the window, only what matters.
            eager = has_event_loop or limited or in_window
            while next_ms <= end_ms and (eager or old + queued - taken < last):
                if has_event_loop:
                    event_loop_free_ms = max(event_loop_free_ms, next_ms) + request_ms
                    arrived_ms[read & mask], ready_ms[read & mask] = next_ms, event_loop_free_ms
                else:
                    waiting = old + queued - taken
                    room = max_queue_rows
                    if rules.shape[0]:
                        room = _room(end_ms - next_ms, max_queue_rows, rules)
                    if room < 0 or waiting < room:
                        queue_ms[queued & mask] = next_ms
                        queued += 1
                    elif in_window:
                        refused[path] += 1
                read += 1
                draw += 1
                next_ms += gaps[draw & draws] * ms_per_arrival
                if (read - handed > mask and has_event_loop) or queued - taken > mask:
                    return path, False
            answered_ms = end_ms
            if has_event_loop:
                answered_ms = event_loop_free_ms = max(event_loop_free_ms, end_ms) + batch_ms
                while handed < read and ready_ms[handed & mask] <= end_ms:
                    if max_queue_rows < 0 or old + queued - taken < max_queue_rows:
                        queue_ms[queued & mask] = arrived_ms[handed & mask]
                        queued += 1
                    elif begin_ms < arrived_ms[handed & mask] <= end_window_ms:
                        refused[path] += 1
                    handed += 1
                if queued - taken > mask:
                    return path, False
            for place in range(first_of_batch, taken):
                arrival_ms = queue_ms[place & mask]
                if begin_ms < arrival_ms <= end_window_ms:
                    if count == responses_ms.size:
                        return path, True
                    responses_ms[count] = answered_ms - arrival_ms
                    count += 1
            # The device is free: when does it start the next batch?
            now_ms = end_ms
            waiting = old + queued - taken
            size = actions[min(waiting, last)]
            waited_at = waiting if size == 0 else -1
            while size == 0:
                timer_ms = infinite
                if waiting and max_wait_ms < infinite:
                    timer_ms = -infinite if old else queue_ms[taken & mask] + max_wait_ms
                if timer_ms <= now_ms:
                    size = min(waiting, largest)
                    break
                if has_event_loop:
                    if handed == read:
                        if timer_ms < next_ms:
                            now_ms = timer_ms
                            continue
                        event_loop_free_ms = max(event_loop_free_ms, next_ms) + request_ms
                        arrived_ms[read & mask], ready_ms[read & mask] = next_ms, event_loop_free_ms
                        read += 1
                        draw += 1
                        next_ms += gaps[draw & draws] * ms_per_arrival
                    handed_ms, arrival_ms = ready_ms[handed & mask], arrived_ms[handed & mask]
                else:
                    handed_ms = arrival_ms = next_ms
                if timer_ms <= handed_ms:
                    now_ms = timer_ms
                    continue
                now_ms = handed_ms
                size = actions[min(waiting + 1, last)]
                if size > 0 or max_queue_rows < 0 or waiting < max_queue_rows:
                    queue_ms[queued & mask] = arrival_ms
                    queued += 1
                    waiting += 1
                elif begin_ms < arrival_ms <= end_window_ms:
                    refused[path] += 1
                if has_event_loop:
                    handed += 1
                else:
                    read += 1
                    draw += 1
                    next_ms += gaps[draw & draws] * ms_per_arrival
        ends[path] = count
    return queue_lengths.size, True
