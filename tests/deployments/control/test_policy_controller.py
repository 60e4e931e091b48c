import json

import pytest

from autoscaler.reports import ReplicaReport
from deployments.config.user_config import parse_user_config
from deployments.control import policy_solver as solver
from deployments.control.model_corrections import PROXY_DELAY_TICKS, REVISE_EVERY
from deployments.serving.service import InferenceService
from policy.batcher.limits import ADMISSION_SHARE
from policy.errors import InvalidInputError
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.solvers.load_lateness import solve_load_lateness_curve
from policy.tables.file import TableFile
from sojourn.cli import main
from tests.support.batching.event_loop_counts import event_loop_counts
from tests.support.models.emulated_service import REFUSES, emulated_service, until_solved

PROFILE = Profile.from_dict({"max_batch_size": 4, "latency_ms": {"per_request": 1.0, "fixed": 3.0}})


@pytest.fixture(autouse=True)
def _own_cache_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(solver, "cache_folder", lambda: tmp_path)


def report_of(service: InferenceService):
    return ReplicaReport.from_floats("a", 1.0, service.autoscaling_stats())


async def solved(service: InferenceService):
    await until_solved(service)
    return report_of(service)


@pytest.mark.slow
async def test_the_rate_under_the_sla_is_reported_once_it_is_solved():
    async with emulated_service(
        PROFILE, sla={"response_time_ms": 20, "percentile": 95}, limits=REFUSES
    ) as service:
        assert report_of(service).curve is None
        first = service.batcher.core.table
        report = await solved(service)
        assert service.batcher.core.table != first
        assert service.explain()["config_error"] is None
        # The way to the replica and back takes half a millisecond.
        objective = ServiceLevelObjective(19.5, 95)
        room = 4 * int(ADMISSION_SHARE * objective.response_time_ms / 7.0)
        expected = solve_load_lateness_curve(PROFILE, objective, room).sla_rate_per_s
        assert report.sla_rate_per_s == pytest.approx(expected)
        assert service.explain()["sla_rate_per_s"] == report.sla_rate_per_s


@pytest.mark.parametrize(
    ("sla_ms", "at_once"),
    [
        (3, True),  # less than a batch of one takes
        # A lone request is answered in 4 ms, but one that just misses a batch waits for it first.
        pytest.param(4.6, False, marks=pytest.mark.slow),
    ],
)
async def test_an_sla_that_no_rate_meets_is_reported(sla_ms, at_once):
    sla = {"response_time_ms": sla_ms, "percentile": 99.9}
    async with emulated_service(PROFILE, sla=sla, limits=REFUSES) as service:
        report = report_of(service) if at_once else await solved(service)
        assert report.curve is None
        assert report.out_of_reach


@pytest.mark.slow
async def test_a_table_solved_in_advance_is_in_force_at_once(tmp_path):
    sla, file = {"response_time_ms": 30, "percentile": 99}, tmp_path / "table.json"
    (tmp_path / "profile.json").write_text(json.dumps(PROFILE.to_dict()))
    profile, export = f"--profile={tmp_path / 'profile.json'}", f"--export={file}"
    assert main(["solve", profile, "--arrival-rate=100", "--sla=30ms@99", export]) == 0
    async with emulated_service(
        PROFILE, sla=sla, limits=REFUSES, policy={"table": str(file)}
    ) as service:
        table = service.batcher.core.table
        assert table == TableFile.load(str(file)).table
        await until_solved(service)
        assert service.batcher.core.table == table
        assert service.explain()["sla_rate_per_s"] > 0
        with pytest.raises(InvalidInputError, match="omit objective"):
            parse_user_config({"policy": {"table": str(file), "objective": "sla"}})
    other = Profile("m", "d", 1.5 * PROFILE.latency_ms)
    with pytest.raises(InvalidInputError, match="was solved for another profile than this replica"):
        async with emulated_service(other, sla=sla, limits=REFUSES, policy={"table": str(file)}):
            pass


@pytest.mark.slow
async def test_the_rate_under_the_sla_falls_with_the_delay_in_haproxy():
    async with emulated_service(PROFILE, sla={"response_time_ms": 20}, limits=REFUSES) as service:
        before = await solved(service)
        service.observer.proxy_delay.delay_s = 8e-3
        for _ in range(PROXY_DELAY_TICKS):
            await service.tick()
        after = await solved(service)
        assert after.sla_rate_per_s < before.sla_rate_per_s
        assert service.controller.corrections.profile_revisions == 0


@pytest.mark.slow
async def test_the_rate_under_the_sla_falls_to_what_the_event_loop_can_take(monkeypatch):
    """The device takes 571 requests/s; the loop, at 5 ms a request, 200."""
    async with emulated_service(PROFILE, sla={"response_time_ms": 100}, limits=REFUSES) as service:
        before = await solved(service)
        assert before.bottleneck == "device"
        assert service.explain()["event_loop"]["request_ms"] is None
        counts = event_loop_counts(160, 40, costs_s=(0.005, 0.0, 0.0))
        monkeypatch.setattr(service.event_loop_meter, "take", lambda: counts)
        for _ in range(2 * REVISE_EVERY):
            await service.tick()
        # At once, although the new curve is not solved yet.
        report = report_of(service)
        assert report.sla_rate_per_s <= 1.05 * 200 < before.sla_rate_per_s
        assert report.bottleneck == "event_loop"
        content = service.explain()
        assert content["bottleneck"] == "event_loop"
        costs = content["event_loop"]
        assert costs["request_ms"] + costs["batch_ms"] / 4 == pytest.approx(5.0, rel=0.05)
        assert costs["utilization"] == pytest.approx(0.8)
        assert content["profile"]["event_loop"]["request_ms"] == costs["request_ms"]
