from dataclasses import replace

import numpy as np
import pytest

from autoscaler.simulator.scenario import Scenario
from autoscaler.simulator.simulation import Simulation
from deployments.config.user_config import parse_user_config
from deployments.control.policy_controller import PolicyController
from policy.batching_policy import BatchingPolicy
from policy.objective import ServiceLevelObjective
from policy.service_model import BatchingSettings
from policy.try_delays import TryDelays
from tests.support.autoscaling.fleet_views import Scripted
from tests.support.profiles import GOOGLENET_P4

#: Tight enough that many answers are late at the loads below.
SLA = ServiceLevelObjective(9.0, 99.0)


def scenario(delays: TryDelays):
    return Scenario(
        GOOGLENET_P4,
        SLA,
        # The last seconds are empty, so that every answer is in the last reports.
        np.array([1500.0, 3500.0, 0.0, 0.0]),
        delays=delays,
        batching=BatchingPolicy.from_control_limit(8, 32, 8.0),
        settings=BatchingSettings(max_queue_rows=4096, max_age_ms=8.0, serve_late=True),
        replicas=2,
        max_replicas=2,
    )


@pytest.mark.parametrize("delays", [TryDelays(0.0, 0.0, 0.0, 5), TryDelays(2.0, 1.0, 0.5, 5)])
def test_replicas_count_as_late_what_their_clients_call_late(delays):
    fleet = Scripted((0, 2))
    simulation = Simulation(scenario(delays), fleet, log_requests=True)
    run, log = simulation.run(), simulation.request_log()
    assert {request.attempts for request in log} == {1}  # a retry's time is the client's alone
    late_at_clients = sum(SLA.is_late(request.response_ms) for request in log)
    assert 0.05 * len(log) < late_at_clients < 0.95 * len(log)
    assert run.in_time.sum() == len(log) - late_at_clients
    reports = fleet.views[-1].reports()
    assert sum(report.late_total for report in reports) == late_at_clients
    assert sum(report.answered_total for report in reports) == len(log)


async def test_the_limit_is_that_of_a_live_replica_with_the_same_delays():
    sla = {"response_time_ms": SLA.response_time_ms, "percentile": SLA.percentile}
    user_config = parse_user_config({"sla": sla})
    controller = PolicyController(GOOGLENET_P4, user_config, lambda: None)
    await controller.close()  # before it starts to solve anything
    delays = replace(user_config.autoscaler.settings().delays, retries=5)
    assert scenario(delays).service.sla == controller.sla_at_replica
    assert controller.sla_at_replica.response_time_ms < SLA.response_time_ms
