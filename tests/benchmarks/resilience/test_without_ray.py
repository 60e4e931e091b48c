"""A service of bare replicas behind HAProxy with the configuration that Ray writes."""

import time

import pytest

from benchmarks.resilience.load import Bystanders, Load
from benchmarks.resilience.service import emulated_document
from benchmarks.resilience.tally import Outcome
from benchmarks.resilience.without_ray import serving_without_ray

pytestmark = pytest.mark.slow


def test_bare_replicas_answer_behind_haproxy_and_nothing_is_left() -> None:
    with serving_without_ray(emulated_document()) as service:
        processes = [*service.replicas(), *service.haproxies(), *service.supervisors()]
        assert len(service.replicas()) == 2
        assert len(service.haproxies()) == len(service.supervisors()) == 1
        bystanders = Bystanders(service.target, Load(rate_per_s=20, idle_clients=0))
        bystanders.start()
        time.sleep(0.5)
        bystanders.end()
    assert {one.outcome for one in bystanders.requests} == {Outcome.RIGHT}
    assert not any(process.is_running() for process in processes)
