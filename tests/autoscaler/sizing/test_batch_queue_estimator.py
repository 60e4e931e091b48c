import heapq
import math
from collections import deque

import numpy as np
import pytest

from autoscaler.sizing.batch_queue_estimator import BatchQueueEstimator
from autoscaler.sizing.estimators import least_replicas
from autoscaler.sizing.rand import rand_equilibrium, response_time_cdf, retried_response_time_cdf
from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError, InvalidInputError
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.response_time.evaluation import evaluate
from policy.try_delays import TryDelays

P4 = Profile.from_dict(
    {
        "max_batch_size": 32,
        "latency_ms": {"per_request": 0.3051, "fixed": 1.052},
        "energy_mj": {"per_request": 19.90, "fixed": 19.60},
    }
)
DELAYS = TryDelays(0.25, 0.25, 2.0)


def test_replicas_that_hold_one_request_give_theorem_2():
    """Evaluated as a queue: batches of one, no waiting room, executions of 10 ms."""
    one = Profile("one", "one", latency_ms=np.array([10.0]))
    policy = BatchingPolicy.from_control_limit(1, 1)

    def at(rate):
        return evaluate(one, policy, rate, max_queue_rows=0)

    found = rand_equilibrium(350.0, 5, lambda rate: at(rate).full_probability)
    assert found.busy_probability == pytest.approx(0.7, rel=1e-8)
    times = np.linspace(0.3, 99.3, 100)  # not on the steps, where rounding decides
    batching = retried_response_time_cdf(
        times, found.busy_probability, at(found.attempt_rate_per_s).cdf, 1.0, 1.0, 3.0
    )
    theorem = response_time_cdf(times, 350.0, 5, 100.0, 10.0, 1.0, 1.0, 3.0)
    assert batching == pytest.approx(theorem, abs=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("response_time_ms", [12.0, 25.0, 100.0])
def test_no_smaller_number_meets_the_sla(response_time_ms):
    estimator = BatchQueueEstimator(P4)
    objective = ServiceLevelObjective(response_time_ms, 99)
    found = least_replicas(estimator, 20_000.0, objective)
    assert found.meets(objective)
    assert found.percentile_ms <= response_time_ms
    assert found.replicas * P4.capacity_per_s > 20_000
    for fewer in range(1, found.replicas):
        assert not estimator.predict(20_000.0, fewer, objective).meets(objective)


@pytest.mark.slow
@pytest.mark.parametrize("response_time_ms", [12.0, 40.0])
def test_one_more_replica_never_breaks_the_sla(response_time_ms):
    objective = ServiceLevelObjective(response_time_ms, 99)
    estimator = BatchQueueEstimator(P4)
    met = [estimator.predict(6000.0, n, objective).meets(objective) for n in range(1, 10)]
    assert met == sorted(met)
    assert met[-1]


@pytest.mark.slow
def test_percentile_and_service_level_agree():
    objective = ServiceLevelObjective(15, 99)
    for replicas in (7, 8, 9, 12):
        found = BatchQueueEstimator(P4, DELAYS).predict(20_000.0, replicas, objective)
        assert found.meets(objective) == (found.percentile_ms <= 15)


def test_an_overloaded_fleet_meets_no_sla():
    found = BatchQueueEstimator(P4).predict(6000.0, 2, ServiceLevelObjective(1e4, 50))
    assert (found.service_level, found.percentile_ms) == (0.0, math.inf)
    assert found.policy is None


def test_with_a_limit_of_retries_the_percentile_can_be_infinite():
    room = BatchQueueEstimator(P4, TryDelays(0.25, 0.25, 0.0, retries=0), max_queue_rows=32)
    found = room.predict(2900.0, 1, ServiceLevelObjective(1000, 99))
    assert found.busy_probability > 0.01
    assert found.percentile_ms == math.inf


def test_an_sla_that_no_number_meets_says_what_would_help():
    with pytest.raises(InfeasibleError, match=r"allow more than 1\.607 ms"):
        least_replicas(BatchQueueEstimator(P4), 100.0, ServiceLevelObjective(1.6, 99))


@pytest.mark.parametrize(
    "call",
    [
        lambda: BatchQueueEstimator(P4, max_queue_rows=31),
        lambda: BatchQueueEstimator(P4).predict(0.0, 1, ServiceLevelObjective(50, 99)),
        lambda: BatchQueueEstimator(P4).predict(10.0, 0, ServiceLevelObjective(50, 99)),
    ],
)
def test_values_out_of_range_are_refused(call):
    with pytest.raises(InvalidInputError):
        call()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arrival_rate_per_s", "replicas", "response_time_ms", "max_queue_rows", "error"),
    [
        (11_000.0, 5, 20.0, 32, 0.004),  # hardly any refusals
        (20_000.0, 8, 15.0, 32, 0.004),
        (29_000.0, 10, 25.0, 32, 0.004),  # one try in twenty is refused
    ],
)
def test_the_prediction_matches_a_simulated_fleet(
    arrival_rate_per_s, replicas, response_time_ms, max_queue_rows, error
):
    objective = ServiceLevelObjective(response_time_ms, 99)
    estimator = BatchQueueEstimator(P4, DELAYS, max_queue_rows)
    found = estimator.predict(arrival_rate_per_s, replicas, objective)
    response_ms, refused = simulate_fleet(
        found.policy, arrival_rate_per_s, replicas, max_queue_rows, requests=60_000
    )
    assert np.mean(response_ms <= response_time_ms) == pytest.approx(found.service_level, abs=error)
    assert refused == pytest.approx(found.busy_probability, abs=0.003)


def simulate_fleet(policy, rate_per_s, replicas, max_queue_rows, *, requests):
    """Simulate RAND with replicas that batch; return response times and the refused share."""
    rng = np.random.default_rng(3)
    arrivals_ms = np.cumsum(rng.exponential(1e3 / rate_per_s, requests)).tolist()
    picks = iter(rng.integers(replicas, size=5 * requests).tolist())
    wait_ms = math.inf if policy.max_wait_ms is None else policy.max_wait_ms
    # (accepted at, request)
    queues: list[deque[tuple[float, int]]] = [deque() for _ in range(replicas)]
    busy_until = [0.0] * replicas
    response_ms = np.empty(requests)
    attempts = refusals = 0
    events = [(at + DELAYS.request_delay_ms, 0, number) for number, at in enumerate(arrivals_ms)]

    def start(replica, now_ms):
        queue = queues[replica]
        if busy_until[replica] > now_ms or not queue:
            return
        size = policy.batch_size(len(queue))
        if size == 0 and now_ms >= queue[0][0] + wait_ms:
            size = min(len(queue), policy.max_batch_size)
        if size == 0:
            if math.isfinite(wait_ms):
                heapq.heappush(events, (queue[0][0] + wait_ms, 1, replica))
            return
        end_ms = now_ms + P4.latency_ms[size - 1]
        for _ in range(size):
            _, number = queue.popleft()
            response_ms[number] = end_ms - arrivals_ms[number]
        busy_until[replica] = end_ms
        heapq.heappush(events, (end_ms, 1, replica))

    while events:
        now_ms, kind, number = heapq.heappop(events)
        if kind == 1:
            start(number, now_ms)
            continue
        replica = next(picks)
        attempts += 1
        if busy_until[replica] > now_ms and len(queues[replica]) >= max_queue_rows:
            refusals += 1
            heapq.heappush(events, (now_ms + DELAYS.try_ms, 0, number))
            continue
        queues[replica].append((now_ms, number))
        start(replica, now_ms)
    return response_ms[requests // 10 :], refusals / attempts


@pytest.mark.parametrize("load", [0.5, 0.95])
def test_a_larger_waiting_room_than_is_evaluated_changes_nothing(load):
    """Under a long SLA thousands of requests may wait; below the capacity they never do."""
    small = Profile.from_dict({"max_batch_size": 4, "latency_ms": {"per_request": 0.2, "fixed": 1}})
    objective, rate = ServiceLevelObjective(1000.0, 99.0), load * small.capacity_per_s
    found = BatchQueueEstimator(small).predict(rate, 1, objective)
    larger = BatchQueueEstimator(small, max_queue_rows=400).predict(rate, 1, objective)
    assert found.policy == larger.policy
    assert found.percentile_ms == pytest.approx(larger.percentile_ms, rel=1e-6)
    assert found.service_level == pytest.approx(larger.service_level, abs=1e-9)
