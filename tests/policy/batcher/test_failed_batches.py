"""The batcher core finds the culprits of failed batches, on virtual time."""

import math
from collections import Counter, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.batcher.core import BatcherCore
from policy.batcher.limits import limits_for
from policy.batcher.requests import Batch, Refusal, Request, StartReason
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.try_delays import TryDelays
from tests.support.batching.batcher_core import contents, make_core

FIXED_MS, ROW_MS = 50.0, 0.5


@dataclass
class Device:
    """Run the batches that a core starts; fail those that contain a poison request.

    Attributes
    ----------
    poison : collection of object
        Names of the requests on which every batch fails.
    names_culprits : bool
        Whether a failed batch names its poison requests.
    fails : callable, optional
        Decides whether a batch fails, in place of `poison`.
    failed, answered : list of object
        Names of the requests that failed, and of the answered requests, once for each slice.
    runs : Counter
        Number of batches that each request was in.
    """

    core: BatcherCore
    poison: Collection[object] = ()
    names_culprits: bool = False
    batch_s: float = 0.01
    fails: Callable[[Batch], bool] | None = None
    now_s: float = 0.0
    failed: list[object] = field(default_factory=list)
    answered: list[object] = field(default_factory=list)
    runs: Counter[object] = field(default_factory=Counter)
    batches: list[Batch] = field(default_factory=list)

    def step(self) -> bool:
        """Run one batch; return False if none starts."""
        batch = self.core.next_batch(self.now_s)
        if batch is None and self.core.wake_at_s is not None:
            self.now_s = self.core.wake_at_s
            batch = self.core.next_batch(self.now_s)
        if batch is None:
            return False
        self.batches.append(batch)
        inside = contents(batch)
        self.runs.update(set(inside))
        self.now_s += self.batch_s
        wrong = self.fails(batch) if self.fails else self.has_poison(batch)
        if wrong:
            places = [place for place, name in enumerate(inside) if name in self.poison]
            blamed = places if self.names_culprits else ()
            self.failed += [inside[place] for place in self.core.device_failed(batch, blamed)]
        else:
            self.core.device_free()
            self.answered += inside
        return True

    def has_poison(self, batch: Batch) -> bool:
        """Return whether a request of the batch is poison."""
        return bool(set(contents(batch)) & set(self.poison))

    def run(self) -> None:
        """Run batches until none starts."""
        while self.step():
            assert len(self.batches) < 10_000, "the search must end"


def queued(core: BatcherCore, count: int, **options: float) -> list[Request]:
    requests = [Request(0.0, 1, number, **options) for number in range(count)]
    for request in requests:
        assert core.arrive(0.0, request) is None
    return requests


def test_the_search_halves_the_suspects() -> None:
    core = make_core(max_batch_size=8)
    queued(core, 8)
    device = Device(core, {5})
    device.run()
    sizes = [(batch.size, batch.slices_under_test, batch.reason) for batch in device.batches]
    test = StartReason.SEARCH
    # 0-7 fail; 0-3 pass; 4 and 5 fail, which clears 6 and 7; 4 passes; 5 fails alone.
    assert sizes == [
        (8, 0, StartReason.FULL),
        (4, 4, test),
        (2, 2, test),
        (2, 0, StartReason.LIMIT),
        (1, 1, test),
        (1, 1, test),
    ]


def test_an_ordinary_batch_follows_a_failed_test() -> None:
    core = make_core(max_batch_size=8)
    queued(core, 40)
    device = Device(core, {0})
    device.run()
    reasons = [batch.reason for batch in device.batches]
    failed = [device.has_poison(batch) for batch in device.batches]
    after_failed_tests = [
        following
        for reason, has_failed, following in zip(reasons, failed, reasons[1:], strict=False)
        if reason is StartReason.SEARCH and has_failed
    ]
    assert set(after_failed_tests) == {StartReason.FULL}
    assert device.failed == [0]


def test_cleared_requests_do_not_wait_for_others_again() -> None:
    core = make_core(control_limit=4, max_batch_size=4, max_age_ms=10_000.0)
    queued(core, 4)
    device = Device(core, {0})
    device.run()
    assert (device.failed, device.answered) == ([0], [2, 3, 1])
    assert device.now_s == pytest.approx(0.05)
    assert device.batches[2].reason is StartReason.AGAIN


def test_named_culprits_need_no_search() -> None:
    core = make_core(max_batch_size=8)
    queued(core, 8)
    device = Device(core, {2, 6}, names_culprits=True)
    device.run()
    assert [batch.size for batch in device.batches] == [8, 6]
    assert device.failed == [2, 6]
    assert device.answered == [0, 1, 3, 4, 5, 7]


def test_a_cancelled_suspect_is_not_run_again() -> None:
    core = make_core(max_batch_size=4)
    requests = queued(core, 4)
    device = Device(core, {1})
    device.step()
    core.cancel(requests[0])
    core.cancel(requests[3])
    assert core.queue_length == 2
    device.run()
    assert device.runs[0] == device.runs[3] == 1
    assert (device.failed, device.answered) == ([1], [2])


def test_a_request_cancelled_on_the_device_does_not_return() -> None:
    core = make_core(max_batch_size=4)
    requests = queued(core, 4)
    batch = core.next_batch(0.0)
    assert batch is not None
    core.cancel(requests[0])
    core.device_failed(batch)
    assert core.queue_length == 3
    device = Device(core, {1})
    device.run()
    assert (device.runs[0], device.failed, sorted(device.answered)) == (0, [1], [2, 3])


def test_a_suspect_that_would_miss_its_deadline_is_dropped() -> None:
    core = make_core(max_batch_size=4, batch_ms=10.0)
    requests = queued(core, 4, deadline_s=0.035)
    device = Device(core, {3})
    device.run()
    # 0-3 fail at 10 ms, 0 and 1 pass at 20 ms, 2 passes at 30 ms; 3 would fail at 40 ms.
    assert sorted(device.answered) == [0, 1, 2]
    assert core.deadline_missed == [requests[3]]
    assert core.queue_length == 0


def test_suspects_have_their_own_room_and_crowd_out_the_oldest() -> None:
    core = make_core(max_batch_size=8, max_queue_rows=8)
    queued(core, 8)
    device = Device(core, {0, 8})
    device.step()  # 0-7 fail
    for number in range(8, 16):
        assert core.arrive(0.0, Request(0.0, 1, number)) is None
    assert core.queue_length == 16
    assert core.arrive(0.0, Request(0.0, 1)) is Refusal.FULL
    device.step()  # 0-3 and 8-11 fail
    assert not core.crowded_out
    device.step()  # 4-11 fail
    assert [request.content for request in core.crowded_out] == [0, 1, 2, 3]
    device.run()
    assert device.failed == [8]
    assert sorted(device.answered) == [4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15]


def test_a_lost_device_gives_up_every_waiting_request() -> None:
    core = make_core(max_batch_size=8)
    requests = queued(core, 12)
    core.arrive(0.0, Request(0.0, 1, "high", priority=1))
    device = Device(core, {0})
    device.step()
    batch = core.next_batch(device.now_s)
    assert batch is not None
    on_it = {id(part.request) for part in batch.slices}
    given_up = core.device_lost()
    assert len(given_up) == len(requests) + 1 - len(on_it)
    assert core.queue_length == 0
    assert core.arrive(1.0, Request(1.0, 1)) is Refusal.FULL
    assert core.next_batch(1.0) is None


@st.composite
def failing_loads(draw: st.DrawFn) -> tuple[BatcherCore, list[tuple[float, int]], set[int], bool]:
    cap = draw(st.sampled_from([1, 2, 3, 8, 32]))
    core = make_core(
        control_limit=draw(st.integers(1, cap)),
        max_batch_size=cap,
        max_wait_ms=draw(st.none() | st.floats(0, 20)),
        max_queue_rows=10_000,
    )
    arrivals = draw(
        st.lists(st.tuples(st.floats(0, 0.01), st.integers(1, 5)), min_size=1, max_size=60)
    )
    poison = draw(st.sets(st.integers(0, len(arrivals) - 1)))
    return core, arrivals, poison, draw(st.booleans())


@pytest.mark.slow
@given(failing_loads())
@settings(max_examples=300, deadline=None, derandomize=True)
def test_only_culprits_fail_and_no_request_is_run_more_often_than_the_bound(
    load: tuple[BatcherCore, list[tuple[float, int]], set[int], bool],
) -> None:
    core, arrivals, poison, names_culprits = load
    device = Device(core, poison, names_culprits)
    requests: list[Request] = []
    due_s = np.cumsum([gap_s for gap_s, _ in arrivals]).tolist()
    while len(requests) < len(arrivals) or core.queue_length:
        while len(requests) < len(arrivals) and due_s[len(requests)] <= device.now_s:
            number = len(requests)
            requests.append(Request(due_s[number], arrivals[number][1], number))
            assert core.arrive(device.now_s, requests[-1]) is None
        if not device.step():
            device.now_s = due_s[len(requests)]
    assert sorted(device.failed) == sorted(poison)
    assert set(device.answered) == set(range(len(arrivals))) - poison
    cap = core.policy(0.0).max_batch_size
    bound = 2 * math.ceil(math.log2(cap)) + 2
    for request in requests:
        slices = sum(request.content in contents(batch) for batch in device.batches)
        assert slices <= bound * request.rows
        if request.rows == 1:
            assert device.runs[request.content] <= bound
    assert core.queue_length == 0


@pytest.mark.parametrize("cap", [2, 8, 32])
def test_a_device_that_fails_on_batches_of_two_or_more_answers_within_the_bound(cap: int) -> None:
    core = make_core(max_batch_size=cap, max_queue_rows=1000)
    queued(core, 5 * cap)
    device = Device(core)
    device.fails = lambda batch: len(batch.slices) > 1
    device.run()
    assert not device.failed
    assert sorted(device.answered) == list(range(5 * cap))
    assert max(device.runs.values()) <= 2 * math.log2(cap) + 2


@pytest.mark.parametrize(("failure_time", "share"), [(0.0, 0.85), (1.0, 0.65)])
def test_an_overloaded_device_with_poison_still_answers_most_in_time(
    failure_time: float, share: float
) -> None:
    """At 1.5 times the capacity and 1% poison, none is late, and most still get their answer.

    A failed batch takes `failure_time` of what it would have taken: none if it fails as its input
    is read. `share` is of what the same device answers in time without poison.
    """
    latency_ms = [FIXED_MS + ROW_MS * b for b in range(1, 33)]
    profile = Profile(model="m", device="d", latency_ms=np.array(latency_ms))
    limits = limits_for(profile, ServiceLevelObjective(150.0, 99.0), TryDelays())

    def answers_in_time(poison_fraction: float) -> int:
        core = make_core(max_batch_size=32)
        core.use(core.table, limits)
        random = np.random.default_rng(1)
        due_s = np.cumsum(random.exponential(1 / 727, 6000)).tolist()
        poison = set(np.flatnonzero(random.uniform(size=6000) < poison_fraction).tolist())
        coming = deque(enumerate(due_s))

        def arrive_until(end_s: float) -> None:
            while coming and coming[0][1] <= end_s:
                name, arrival_s = coming.popleft()
                core.arrive(arrival_s, Request(arrival_s, 1, name))

        now_s, answered = 0.0, 0
        while coming:
            batch = core.next_batch(now_s)
            if batch is None:
                now_s = coming[0][1]
                arrive_until(now_s)
                continue
            failed = bool(poison & set(contents(batch)))
            now_s += 1e-3 * latency_ms[batch.size - 1] * (failure_time if failed else 1.0)
            arrive_until(now_s)
            if failed:
                core.device_failed(batch)
            else:
                core.device_free()
                assert all(now_s - due_s[name] <= 0.15 + 1e-9 for name in contents(batch))
                answered += batch.size
        return answered

    assert answers_in_time(0.01) > share * answers_in_time(0.0)


@settings(max_examples=60)
@given(
    culprits=st.sets(st.integers(0, 31), max_size=32),
    cap=st.sampled_from([1, 2, 7, 16, 32]),
    devices=st.integers(1, 3),
    data=st.data(),
)
def test_of_several_devices_only_the_culprits_fail(
    culprits: set[int], cap: int, devices: int, data: st.DataObject
) -> None:
    """Batches end in any order; one test runs at a time, and each request has one outcome."""
    core = make_core(max_batch_size=cap, max_queue_rows=1000)
    core.devices = devices
    queued(core, 32)
    runs: Counter[object] = Counter()
    failed: list[object] = []
    answered: list[object] = []
    running: list[Batch] = []
    while core.queue_length or running:
        while (batch := core.next_batch(1e9)) is not None:
            running.append(batch)
            runs.update(contents(batch))
        assert core.running == len(running) <= devices
        assert sum(batch.slices_under_test > 0 for batch in running) <= 1
        batch = running.pop(data.draw(st.integers(0, len(running) - 1)))
        if culprits & set(contents(batch)):
            failed += [contents(batch)[place] for place in core.device_failed(batch)]
        else:
            core.device_free(batch)
            answered += contents(batch)
    assert set(failed) == culprits
    assert sorted([*failed, *answered], key=int) == list(range(32))
    # Two rows may also be tested together, after one of them filled up a test that failed.
    assert max(runs.values()) <= (5 if cap == 2 else 2 * math.log2(cap) + 2)
