"""A replica of the compiled engine decides as the live batcher core, request by request."""

import heapq
import math
from collections import deque
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

from autoscaler.simulator.engines.compiled import CompiledEngine, rules_of
from autoscaler.simulator.engines.interface import (
    AnsweredRequest,
    FleetCounters,
    ReplicaCounters,
    Routing,
)
from autoscaler.simulator.engines.kernel import bin_of, draw_ratio, random_bits
from autoscaler.simulator.scenario import Failures, Scenario
from autoscaler.simulator.simulation import Simulation
from autoscaler.simulator.start_time import StartTime
from policy.batcher.core import BatcherCore
from policy.batcher.requests import Refusal, Request
from policy.batching_policy import BatchingPolicy
from policy.event_loop import EventLoopCosts
from policy.latency_quantiles import LatencyQuantiles
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.service_model import BatchingSettings
from policy.tables.table import PolicyTable
from policy.try_delays import TryDelays
from tests.support.autoscaling.fleet_views import Scripted

DELAYS_MS = [0.0, 0.25, 3.0, 400.0]
LATENCIES_MS = [[2.0] * 6, [1.0, 2.5, 3.0, 3.0, 8.0, 9.5], np.linspace(8, 30, 6)]
#: The times of batches vary as much as these; the last, by batch size as well.
QUANTILES = [
    None,
    LatencyQuantiles(np.array([10.0, 90.0]), np.array([[0.8], [1.3]]) * np.ones(6)),
    LatencyQuantiles(
        np.array([50.0, 99.0]), np.array([np.linspace(0.6, 1.0, 6), np.linspace(4.0, 1.0, 6)])
    ),
]
#: Requests that still wait then wait for company for ever.
HORIZON_S = 3600.0
#: The order of simultaneous events.
DEVICE, READ, ARRIVAL = range(3)


class LiveReplica:
    """A batcher core between an event loop and a device, in a queue of events."""

    def __init__(self, scenario: Scenario, counters: FleetCounters):
        self.service, self.counters = scenario.service, counters
        self.core = BatcherCore(scenario.table, self.service.limits)
        self.rules = rules_of(scenario, scenario.service)
        self.offered = self.refused = self.late = self.expired = 0
        self.log: list[AnsweredRequest] = []
        self._random = np.array([random_bits(np.array([0], np.uint64), 0)], np.uint64)
        self._loop = self.service.profile.event_loop
        self._loop_free_s = -math.inf
        self._unread = 0
        self._waiting: deque[Request] = deque()
        self._batch: int | None = None
        self._decision = 0
        self._order = count()

    def serve(self, sent_s):
        delay_s = 1e-3 * self.service.delays.request_delay_ms
        self._events: list[tuple[float, int, int, Any]] = [
            (sent + delay_s, ARRIVAL, next(self._order), Request(sent + delay_s, 1, sent))
            for sent in sent_s
        ]
        while self._events and self._events[0][0] <= HORIZON_S:
            now_s, kind, _, subject = heapq.heappop(self._events)
            if kind == ARRIVAL and self._loop is not None:
                self._reach(now_s, subject)
            elif kind != DEVICE:
                self._unread -= kind == READ
                self._admit(now_s, subject)
            elif subject == self._decision:
                self._end_batch(now_s)
                self._decide(now_s)
        answered = len(self.log)
        counts = (self.offered, self.refused, answered, self.late, self.expired)
        return ReplicaCounters(*counts, self.core.queue_length)

    def _push(self, at_s, kind, subject):
        heapq.heappush(self._events, (at_s, kind, next(self._order), subject))

    def _use_loop(self, now_s, work_ms):
        self._loop_free_s = max(now_s, self._loop_free_s) + 1e-3 * work_ms
        return self._loop_free_s

    def _reach(self, now_s, request: Request):
        """Add a request to the event loop's queue, unless it would be too late or one too many."""
        work_s = 1e-3 * self._loop.request_ms
        read_s = max(now_s, self._loop_free_s) + work_s
        load = self._unread + len(self._waiting)
        since_s = now_s - (read_s - now_s)  # its answer waits in the same queue
        has_room = self.core.has_room(1 + self._unread, read_s, since_s)
        if load >= self.rules.concurrency or not has_room:
            refusal = self.core.refusal(1, now_s, now_s)
            self.core.count_refused(refusal, 1, now_s)
            self._refuse(request, refusal)
        else:
            self._unread += 1
            self._push(self._use_loop(now_s, self._loop.request_ms), READ, request)

    def _admit(self, now_s, request: Request):
        refusal = self.core.arrive(now_s, request)
        if refusal is not None:
            self._refuse(request, refusal)
            return
        self.offered += 1
        self._waiting.append(request)
        if self._batch is None:
            self._decide(now_s)

    def _refuse(self, request: Request, refusal: Refusal):
        self.offered += 1
        self.counters.refused[int(request.content)] += 1
        self.refused += refusal is not Refusal.EXPIRED
        self.expired += refusal is Refusal.EXPIRED
        self.late += refusal is Refusal.EXPIRED

    def _decide(self, now_s):
        batch = self.core.next_batch(now_s)
        for _ in self.core.deadline_missed:
            self.counters.refused[int(self._waiting.popleft().content)] += 1
            self.expired, self.late = self.expired + 1, self.late + 1
        self.core.deadline_missed.clear()
        self._decision += 1
        if batch is None:
            self._batch = None
            if self.core.wake_at_s is not None:
                self._push(self.core.wake_at_s, DEVICE, self._decision)
            return
        self._batch = batch.size
        batch_s = 1e-3 * self.service.limits.latency_ms[batch.size - 1]
        if self.rules.time_ranks.size:
            ranks, ratios = self.rules.time_ranks, self.rules.time_ratios
            batch_s *= draw_ratio(ranks, ratios, batch.size, self._random, 0)
        if self.service.profile.energy_mj is not None:
            energy_j = self.counters.energy_j
            second = min(int(now_s), energy_j.size - 1)
            energy_j[second] += 1e-3 * self.service.profile.energy_mj[batch.size - 1]
            energy_j[second] -= self.rules.idle_power_w * batch_s
        self._push(now_s + batch_s, DEVICE, self._decision)

    def _end_batch(self, now_s):
        if self._batch is None:
            return
        self.core.device_free()
        if self._loop is not None:
            now_s = self._use_loop(now_s, self._loop.batch_ms)
        for _ in range(self._batch):
            request = self._waiting.popleft()
            self.late += self.service.sla.is_late(1e3 * (now_s - request.arrival_s))
            at_client_s = now_s + 1e-3 * self.service.delays.reply_delay_ms - request.content
            self.log.append(AnsweredRequest(request.content, 1e3 * at_client_s, self._batch, 1))
            self.counters.histogram[bin_of(1e3 * at_client_s)] += 1
            if not self.service.client_sla.is_late(1e3 * at_client_s):
                self.counters.in_time[int(request.content)] += 1
        self._batch = None


@st.composite
def policies(draw):
    """Draw a control limit, or a table that splits queues and leaves requests behind."""
    wait_ms = draw(st.none() | st.floats(0, 30))
    largest = draw(st.integers(1, 6))
    if draw(st.booleans()):
        limit = draw(st.integers(1, largest))
        return BatchingPolicy.from_control_limit(limit, largest, wait_ms)
    # Many zeros, so that the longest wait decides for long queues as well.
    sizes = [draw(st.sampled_from([0, 0, min(q, largest), 1])) for q in range(1, 9)]
    return BatchingPolicy((0, *sizes, draw(st.integers(1, largest))), wait_ms)


#: Event loop and device take turns to be the bottleneck; whole times let their events coincide.
COSTS_MS = st.sampled_from([0.0, 0.25, 1.0, 3.0]) | st.floats(0, 5)


@st.composite
def profiles(draw):
    latency_ms = np.array(draw(st.sampled_from(LATENCIES_MS)))
    return Profile(
        "model",
        "device",
        latency_ms,
        10 + latency_ms,
        idle_power_w=draw(st.sampled_from([None, 0.5])),
        latency_quantiles=draw(st.sampled_from(QUANTILES)),
        event_loop=draw(st.none() | st.builds(EventLoopCosts, COSTS_MS, COSTS_MS, st.booleans())),
    )


@st.composite
def scenarios(draw):
    rates = tuple(sorted(draw(st.sets(st.floats(5, 300), min_size=1, max_size=3))))
    table = PolicyTable(rates, tuple(draw(policies()) for _ in range(len(rates) + 1)))
    least = draw(st.integers(0, 1))
    return Scenario(
        draw(profiles()),
        ServiceLevelObjective(40.0, 99.0),
        np.array(draw(st.lists(st.integers(0, 400), min_size=3, max_size=6))),
        within_second=draw(st.sampled_from(["uniform", "linear"])),
        start_time=StartTime(draw(st.floats(0, 2)), draw(st.floats(0, 1))),
        seed=draw(st.integers(0, 1000)),
        routing=draw(st.sampled_from(Routing)),
        delays=draw(st.builds(TryDelays, *3 * [st.sampled_from(DELAYS_MS)], st.integers(0, 5))),
        batching=table,
        settings=BatchingSettings(
            serve_late=draw(st.booleans()),
            max_queue_rows=draw(st.sampled_from([1, 2, 7, 20])),
            max_age_ms=draw(st.sampled_from([0.0, 15.0, 2000.0, math.inf])),
        ),
        replicas=draw(st.integers(least, 4)),
        min_replicas=least,
        max_replicas=12,
        failures=Failures(tuple(draw(st.lists(st.floats(0, 5), max_size=6)))),
    )


def check_that_a_replica_decides_as_the_live_core(scenario, sent_s):
    """Compare all that is done in the hour after requests that are sent at these times."""
    seconds = int(sent_s[-1]) + 1 if sent_s else 1
    found, expected = FleetCounters.zeros(seconds), FleetCounters.zeros(seconds)
    engine = CompiledEngine(scenario, found, seed=1, log_requests=True)
    engine.add(0, 0.0)
    engine.route_to([0], 0.0)
    engine.offer(np.array(sent_s))
    engine.advance(HORIZON_S)
    live = LiveReplica(scenario, expected)
    counts = live.serve(sent_s)
    assert engine.request_log() == sorted(live.log)
    assert engine.counters(0) == counts
    for name in ("in_time", "refused", "histogram"):
        assert_array_equal(getattr(found, name), getattr(expected, name), name)
    assert_allclose(found.energy_j, expected.energy_j, rtol=1e-12)
    return live.log


@pytest.mark.slow
@settings(max_examples=100)
@given(scenarios())
def test_a_replica_decides_as_the_live_core(scenario):
    random = np.random.default_rng(scenario.seed)
    sent_s = np.concatenate(
        [second + np.sort(random.random(int(n))) for second, n in enumerate(scenario.counts)]
    )
    check_that_a_replica_decides_as_the_live_core(scenario, sent_s.tolist())


@pytest.mark.slow
@given(scenarios(), st.lists(st.integers(0, 12), min_size=1, max_size=6))
def test_each_request_to_a_fleet_is_answered_once_or_refused(scenario, numbers):
    fleet = Scripted(*enumerate(numbers))
    simulation = Simulation(scenario, fleet, log_requests=True)
    run, log = simulation.run(), simulation.request_log()
    answered = np.bincount([int(entry.sent_s) for entry in log], minlength=scenario.seconds)
    assert_array_equal(run.offered, answered + run.refused)
    assert run.histogram.sum() == answered.sum()
    assert len({entry.sent_s for entry in log}) == len(log)
    assert all(1 <= entry.attempts <= scenario.delays.retries + 1 for entry in log)
    in_time = sum(entry.response_ms <= scenario.objective.response_time_ms for entry in log)
    assert run.in_time.sum() == in_time


@pytest.mark.parametrize("routing", Routing)
def test_requests_avoid_the_busier_replicas_as_the_routing_promises(routing):
    """How often a request misses the least busy replicas follows from how many are busier."""
    draws = {Routing.RANDOM: 1, Routing.POWER_OF_TWO: 2, Routing.LEAST_CONNECTIONS: math.inf}
    scenario = Scenario(
        Profile("model", "device", np.array([30.0])),
        ServiceLevelObjective(1e6, 99.0),
        np.ones(1),
        batching=BatchingPolicy.from_control_limit(1, 1),
        delays=TryDelays(0.0, 0.0, 0.0, 0),
        routing=routing,
    )
    engine = CompiledEngine(scenario, FleetCounters.zeros(60), seed=1)
    slots = range(4)
    for slot in slots:
        engine.add(slot, 0.0)
    engine.route_to(slots, 0.0)
    missed, expected, variance, offered = 0, 0.0, 0.0, [0, 0, 0, 0]
    of_equals = [0, 0, 0, 0]
    for sent_s in np.cumsum(np.random.default_rng(2).exponential(0.01, 3000)):
        engine.offer(np.array([sent_s]))
        engine.advance(np.nextafter(sent_s, np.inf))
        counts = [engine.counters(slot) for slot in slots]
        (chosen,) = (slot for slot in slots if counts[slot].offered > offered[slot])
        offered = [one.offered for one in counts]
        inside = [one.offered - one.refused - one.completed for one in counts]
        inside[chosen] -= 1
        busier = float(np.mean(np.array(inside) > min(inside))) ** draws[routing]
        missed += inside[chosen] > min(inside)
        expected += busier
        variance += busier * (1 - busier)
        of_equals[chosen] += len(set(inside)) == 1
    assert abs(missed - expected) <= 3 * math.sqrt(variance)
    # None has an advantage among equals.
    assert stats.chisquare(of_equals).pvalue > 0.01


def test_after_a_drop_of_the_load_a_replica_stops_to_wait_for_company():
    """The rate that batching goes by is a mean over 5 s, unless what arrives contradicts it."""
    rates_per_s = tuple(np.geomspace(60, 2000, 64).tolist())
    limits = tuple(BatchingPolicy.from_control_limit(1 + cell // 4, 17) for cell in range(65))
    scenario = Scenario(
        Profile("model", "device", np.full(17, 0.5)),
        ServiceLevelObjective(500.0, 99.0),
        np.ones(1),
        batching=PolicyTable(rates_per_s, limits),
        settings=BatchingSettings(max_age_ms=200.0),
    )
    random = np.random.default_rng(1)
    sent_s = np.sort(np.append(4 * random.random(8000), 4 + 3 * random.random(120)))
    log = check_that_a_replica_decides_as_the_live_core(scenario, sent_s.tolist())
    after = [entry.response_ms for entry in log if entry.sent_s > 4.5]
    assert len(after) > 80
    # Without the check, the mean says 900/s after 4 s, and each waits for 15 others.
    assert np.median(after) < 50


@pytest.mark.slow
@given(scenarios(), st.lists(st.integers(0, 12), min_size=1, max_size=6))
def test_an_event_loop_that_takes_no_time_changes_nothing(scenario, numbers):
    """Requests that were held without a replica: each once found the last one unread."""
    runs = []
    for event_loop in (None, EventLoopCosts(0.0, 0.0, shares_cpu=False)):
        profile = replace(scenario.profile, event_loop=event_loop)
        fleet = Scripted(*enumerate(numbers))
        simulation = Simulation(replace(scenario, profile=profile), fleet, log_requests=True)
        runs.append((simulation.run().refused.tolist(), simulation.request_log()))
    assert runs[0] == runs[1]
