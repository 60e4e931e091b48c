import asyncio
from dataclasses import replace

import pytest

from autoscaler.reports import ReplicaReport
from autoscaler.sizing.fleet_sizing import FleetSizing, median_replica
from deployments.config.user_config import parse_user_config
from deployments.config.validation import ConfigError
from deployments.control import policy_solver as solver
from deployments.control.policy_solver import SolveRequest, work_conserving_table
from policy.batcher.arrival_rate import ArrivalRate
from policy.errors import InvalidInputError
from policy.power_limit import under_power_limit
from policy.profile import Profile
from policy.service_model import solve_curve
from policy.tables.power import solve_power_table
from policy.try_delays import TryDelays
from tests.support.models.emulated_service import REFUSES, emulated_service, infer, until_solved

PROFILE = Profile.from_dict(
    {
        "max_batch_size": 8,
        "latency_ms": {"per_request": 0.5, "fixed": 2.0},
        "energy_mj": {"per_request": 25.0, "fixed": 80.0},
        "idle_power_w": 10.0,
    }
)
SLA = {"response_time_ms": 20, "percentile": 99}


@pytest.fixture
def solved_here(monkeypatch):
    """Solve in a thread: a worker has the lowest priority, which can take minutes."""

    async def solved(_, request: SolveRequest):
        service, power = request.service, request.power
        table = work_conserving_table(service.profile, service.objective)
        curve = await asyncio.to_thread(solve_curve, replace(service, given=table))
        return table, curve, await asyncio.to_thread(solve_power_table, *power)

    monkeypatch.setattr(solver, "solve_in_worker", solved)


@pytest.mark.slow
@pytest.mark.usefixtures("solved_here")
async def test_a_replica_batches_within_its_share_and_the_autoscaler_limits_the_fleet(monkeypatch):
    rate_per_s = 0.4 * PROFILE.capacity_per_s
    monkeypatch.setattr(ArrivalRate, "per_s", lambda *_: rate_per_s)
    async with emulated_service(PROFILE, sla=SLA, limits=REFUSES, power_limit_w=100) as service:
        assert service.explain()["power_limit"]["batching_for"] == "solving"
        await until_solved(service)
        await service.tick()
        alone = service.batcher.core.table
        service.controller.share_power(5)
        shared = service.batcher.core
        assert (
            shared.table.lookup(rate_per_s).control_limit > alone.lookup(rate_per_s).control_limit
        )
        model = service.controller.user_config.service_model(PROFILE)
        planned = under_power_limit(
            model, 20.0, rate_per_s, 1, service.controller.solver.power_table
        )
        assert (shared.table, shared.limits) == (planned.service.table, planned.service.limits)
        await asyncio.gather(*(infer(service) for _ in range(8)))
        report = service.explain()["power_limit"]
        assert (report["replicas"], report["share_w"]) == (5, pytest.approx(20))
        assert "99% of requests within" in report["batching_for"]

        read = ReplicaReport.from_floats("a", 1.0, service.autoscaling_stats())
        sizing = FleetSizing(median_replica([read]), 1.0, 1, 100, TryDelays())
        light, heavy = (sizing.required(load * PROFILE.capacity_per_s) for load in (0.5, 5.0))
        assert (light.replicas, light.remark) == (1, "")
        assert heavy.replicas == 2  # each draws 47 W with full batches
        assert "100 W do not carry this load" in heavy.remark


async def test_a_ceiling_that_cannot_be_held_is_refused():
    with pytest.raises(InvalidInputError, match="must be above the 10 W of one idle replica"):
        async with emulated_service(PROFILE, power_limit_w=9):
            pass
    with pytest.raises(ConfigError, match="decides the policy; omit policy"):
        parse_user_config({"power_limit_w": 100, "policy": {"objective": "sla"}})
