import threading

import orjson

from autoscaler.decision import Decision, DecisionLog
from loadtests import watch
from loadtests.watch import ServiceWatch, sample
from tests.support.models.emulated_service import emulated_service
from tests.support.profiles import PADDED
from tests.support.waiting import LIMIT_S


def test_the_service_is_asked_until_the_test_ends_even_if_it_is_silent_at_times(monkeypatch):
    monkeypatch.setattr(watch, "WATCH_EVERY_S", 0.001)
    other = {"model": "b", "predicted_ms": {"99": 7.0}}
    policy = {"model": "a", "predicted_ms": {"99": 80.0}, "models": {"b": other}}
    asked: list[str] = []
    enough = threading.Event()

    def ask(path):
        asked.append(path)
        if len(asked) > 5:
            enough.set()
        # Every other answer about the policy is missing, and all those of the autoscaler.
        return policy if path.endswith("policy") and len(asked) % 2 else None

    monkeypatch.setattr("time.perf_counter", lambda: float(len(asked)))
    with ServiceWatch("b", ask) as found:
        assert enough.wait(LIMIT_S)
    told = found.since(3.0)
    assert told
    assert all(one["at_s"] >= 0 and one["replicas"] is None for one in told)
    assert all(one["predicted_ms"] == {"99": 7.0} for one in told)
    assert not found._thread.is_alive()


async def test_a_real_service_and_a_real_log_are_understood():
    log = DecisionLog()
    log.add(7.0, 1, Decision(replicas=2, reason="more load", demand_per_s=50.0))
    async with emulated_service(PADDED) as service:
        policy = orjson.loads(orjson.dumps(service.explain(), option=orjson.OPT_SERIALIZE_NUMPY))
        service.controller.percentiles.predicted_ms = {"99": 80.0}
        predicting = service.explain()
    found = sample(1.0, policy, {"newest": log.newest, "dry_run": False})
    decided = {"replicas": 2, "demand_per_s": 50.0, "reason": "more load"}
    assert found == {"at_s": 1.0, "predicted_ms": {}, **decided}
    assert sample(1.0, predicting, {})["predicted_ms"] == {"99": 80.0}
