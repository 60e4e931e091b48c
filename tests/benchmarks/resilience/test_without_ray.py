"""A service of bare replicas behind HAProxy with the configuration that Ray writes."""

import pytest

from benchmarks.resilience.load import Bystanders, Load
from benchmarks.resilience.service import emulated_document
from benchmarks.resilience.tally import Outcome
from benchmarks.resilience.without_ray import serving_without_ray
from tests.support.services import serving_late
from tests.support.waiting import has_ended, wait_for

pytestmark = pytest.mark.slow


def test_bare_replicas_answer_behind_haproxy_and_nothing_is_left() -> None:
    with serving_without_ray(serving_late(emulated_document())) as service:
        processes = [*service.replicas(), *service.haproxies(), *service.supervisors()]
        assert len(service.replicas()) == 2
        assert len(service.haproxies()) == len(service.supervisors()) == 1
        bystanders = Bystanders(service.target, Load(rate_per_s=20, idle_clients=0))
        bystanders.start()
        assert wait_for(lambda: len(bystanders.requests) >= 10)
        bystanders.end()
    assert {one.outcome for one in bystanders.requests} == {Outcome.RIGHT}
    assert all(has_ended(process) for process in processes)
