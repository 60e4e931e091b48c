"""Faults and deployments under load on a real Ray: what clients lose, and for how long.

All tests of faults share one service. `benchmarks.resilience` has more faults, for longer.
"""

import signal
import time
from contextlib import contextmanager
from functools import partial
from urllib.parse import urlsplit

import psutil
import pytest

from benchmarks.resilience.load import Bystanders, Load, Target
from benchmarks.resilience.service import emulated_document
from benchmarks.resilience.tally import Outcome
from tests.support.processes.services import Running, get, serving_late
from tests.support.waiting import LIMIT_S, wait_for

pytestmark = pytest.mark.integration

LOAD = Load(rate_per_s=40, large_every=0, idle_clients=20, idle_s=2)
SLA_S = 0.5


@pytest.fixture(scope="module")
def service(one_ray: Running):
    document = emulated_document(replicas=2)
    document["applications"][0]["name"] = "faulty"
    running = one_ray.serve_instead(document)
    assert wait_for(lambda: running.servers_up() == len(running.replicas()) == 2)
    return running


@contextmanager
def load(service: Running):
    address = urlsplit(service.url)
    assert address.hostname
    assert address.port
    target = Target(address.hostname, address.port, "googlenet", SLA_S, 99)
    bystanders = Bystanders(target, LOAD)
    bystanders.start()
    try:
        assert wait_for(lambda: len(bystanders.requests) > LOAD.rate_per_s)
        yield bystanders
    finally:
        bystanders.end()


def newest(service: Running, part):
    """Return the youngest process of the service whose command line contains `part`."""
    found = [one for one, words in service.processes().items() if part in " ".join(words)]
    return max(found, key=psutil.Process.create_time, default=None)


def answered_from(bystanders: Bystanders, since_s, count):
    """Return whether `count` requests that were due since then have been answered right."""
    right = [one for one in bystanders.requests if one.outcome is Outcome.RIGHT]
    return sum(one.due_s > since_s for one in right) >= count


def broken(bystanders: Bystanders):
    """Return the requests that were neither answered right nor refused, as busy replicas do."""
    return [
        one
        for one in bystanders.requests
        if one.outcome is not Outcome.RIGHT and one.status not in (503, 504)
    ]


def test_a_killed_haproxy_loses_only_what_it_held(service: Running):
    with load(service) as bystanders:
        haproxy = newest(service, "bin/haproxy -db")
        assert haproxy
        lives_s = time.monotonic()
        haproxy.kill()
        haproxy.wait(LIMIT_S)
        killed_s = time.monotonic()
        assert wait_for(lambda: answered_from(bystanders, killed_s, 80))
    held = [
        one for one in bystanders.requests if one.due_s <= killed_s and one.finished_s >= lives_s
    ]
    assert [one for one in broken(bystanders) if one not in held] == []


def test_a_replica_that_stops_is_left_out_and_its_requests_are_sent_on(service: Running):
    with load(service) as bystanders:
        replica = next(iter(service.replicas().values()))
        replica.send_signal(signal.SIGSTOP)
        try:
            assert wait_for(lambda: service.servers_up() == 1)
            left_out_s = time.monotonic()
            # While it is stopped, all answers are the other's.
            assert wait_for(lambda: answered_from(bystanders, left_out_s, 80))
        finally:
            goes_on_s = time.monotonic()
            replica.send_signal(signal.SIGCONT)
    # Nor did anyone wait for it for as long as a client does.
    assert broken(bystanders) == []
    due_before = [one for one in bystanders.requests if one.due_s < left_out_s]
    assert [one for one in due_before if one.finished_s > goes_on_s] == []


def test_the_death_of_the_actor_that_manages_haproxy_is_not_noticed(service: Running):
    with load(service) as bystanders:
        manager = newest(service, "ray::HAProxyManager")
        orphan = newest(service, "bin/haproxy -db")
        assert manager
        manager.kill()
        # The successor has a HAProxy of its own once it knows the replicas.
        assert wait_for(lambda: newest(service, "bin/haproxy -db") not in (None, orphan))
        assert wait_for(partial(answered_from, bystanders, time.monotonic(), 100))
    assert broken(bystanders) == []


def versioned(replicas, version, **model):
    document = serving_late(emulated_document(replicas, version=version, **model))
    document["applications"][0]["name"] = "versioned"
    return document


def test_no_request_is_lost_while_replicas_are_replaced_and_stopped(one_ray: Running):
    """Not even with one replica, nor while a new version does not come up."""
    service = one_ray.serve_instead(versioned(1, "1"))

    def versions():
        return get(f"{service.url}/v2/models/googlenet").json()["versions"]

    with load(service) as bystanders:
        assert wait_for(lambda: len(service.replicas()) == 1)
        (first,) = service.replicas()
        service.redeploy(versioned(1, "2"))
        assert wait_for(lambda: versions() == ["2"] and first not in service.replicas())
        (second,) = service.replicas()
        service.redeploy(versioned(1, "3", options={"profile": "no-such-file"}))
        assert wait_for(lambda: "no-such-file" in str(service.applications()["versioned"]))
        assert second in service.replicas()
        assert versions() == ["2"]
        service.redeploy(versioned(2, "2"))
        assert wait_for(lambda: len(service.replicas()) == 2)
        service.redeploy(versioned(1, "2"))
        assert wait_for(lambda: len(service.replicas()) == 1)
    assert {one.outcome for one in bystanders.requests} == {Outcome.RIGHT}
