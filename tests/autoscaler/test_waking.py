import math

import pytest

from autoscaler.decision import FleetState
from autoscaler.offered_load import OfferedLoad
from autoscaler.waking import FirstReplicaWait


def zero(waiting):
    return FleetState(0, 0, 10, 0, waiting)


def test_waiting_requests_count_as_a_rate_however_long_the_first_replica_takes():
    waking, load = FirstReplicaWait(), OfferedLoad()
    rates = []
    for second in range(1, 200):
        waking.observe(float(second), zero(waiting=20.0 * second), load)
        rates.append(waking.rate_per_s(float(second), 20.0 * second))
    assert rates[-1] == pytest.approx(20.0, rel=0.02)
    waking.observe(200.0, zero(waiting=0.0), load)
    assert waking.rate_per_s(200.0, 0.0) is None


def test_a_fleet_is_not_idle_while_a_first_replica_starts():
    waking, load = FirstReplicaWait(), OfferedLoad()
    assert waking.idle_s(0.0, load) == math.inf
    waking.observe(100.0, FleetState(1, 0, 10, ready_replicas=0), load)
    assert waking.idle_s(160.0, load) == 60.0
    waking.observe(160.0, FleetState(1, 0, 10, ready_replicas=1), load)
    assert waking.idle_s(160.0, load) == 60.0
