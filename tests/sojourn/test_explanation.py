import asyncio

import httpx
import pytest

from deployments.http.app import InferenceApp
from sojourn import service_view
from sojourn.cli import main
from sojourn.explanation import findings
from tests.support.models.emulated_service import emulated_service
from tests.support.profiles import GOOGLENET_P4
from tests.support.service_reports import decided, entry, policy, watched

SOLVED = {"table": "solved", "sla_rate_per_s": 50.0}


def minute(**counts):
    counts = {"seconds": 60.0, "completed": 600, "answered": 600, "late": 0, "failed": 0, **counts}
    return {"last_minute": {"refused": 0, **counts}, **SOLVED}


FULL = minute(refused_queue_full=60)
ENOUGH = entry(1000.0, 2, 2, predicted_service_level=0.999)


@pytest.mark.parametrize(
    ("document", "decisions", "cause", "change"),
    [
        ({**FULL, "sla_rate_per_s": None}, [ENOUGH], "out of reach", "sla:"),
        (
            {
                **FULL,
                "bottleneck": "resize",
                "stages": [{"name": "resize", "busy": 2, "workers": 2, "queue_length": 9}],
            },
            [],
            "a stage has too few workers",
            "workers of that stage",
        ),
        (FULL, [entry(1000.0, 2, 2, stuck_replicas=1)], "replicas do not start", "ray_actor_"),
        (FULL, [entry(1000.0, 2, 2, required_replicas=3)], "budget", "policy_kwargs.replica_"),
        (
            FULL,
            [entry(1000.0, 2, 2, predicted_service_level=0.7)],
            "there may be no more replicas",
            "autoscaling_config.max_replicas",
        ),
        (FULL, [entry(950.0, 1, 2), ENOUGH], "rose faster", "autoscaler.expert.burst_factor"),
        (FULL, [entry(930.0, 1, 2), ENOUGH], "came at once", "autoscaler.expert.burst_factor"),
        ({**FULL, "bottleneck": "neither"}, [ENOUGH], "other processes", "ray_actor_options.num"),
        (minute(refused_deadline=6), [ENOUGH], "clients want answers sooner", "the requests'"),
        (
            minute(refused_deadline=6, late=1),
            [ENOUGH],
            "came at once",
            "autoscaler.expert.burst_factor",
        ),
        (
            minute(refused_queue_full=60, completed=3000),
            [ENOUGH],
            "too few replicas",
            "autoscaling_config.max_replicas",
        ),
        (minute(refused_concurrency_limit=6), [], "came at once", "autoscaler.expert.burst_factor"),
        (minute(late=7), [ENOUGH], "came at once", "autoscaler.expert.burst_factor"),
        (minute(failed=6), [ENOUGH], "the model fails", "the model"),
        (minute(refused_memory=6), [ENOUGH], "memory", "limits.expert.max_bytes_in_flight"),
        (minute(refused_loading=6), [ENOUGH], "being loaded", "on_demand"),
        (minute(refused_stopping=6), [ENOUGH], "replicas stop", "nothing"),
        (minute(refused_device_lost=6), [ENOUGH], "hung or was lost", "the model"),
        (minute(refused_suspected=6), [ENOUGH], "hung another replica", "the model"),
        (minute(refused_rate_limit=6), [ENOUGH], "a token", "access.tokens"),
        ({**minute(), "config_error": "sla: wrong"}, [ENOUGH], "rejected", "what the evidence"),
    ],
)
def test_each_trouble_has_one_explanation(document, decisions, cause, change):
    (found,) = findings(watched(policy(**document), decisions=decisions))
    assert cause in found.cause
    assert found.change.startswith(change)
    assert found.evidence


def test_a_dry_run_is_named_before_its_effects():
    decision = entry(1000.0, 1, 3, predicted_service_level=0.5)
    snapshot = {**watched(policy(**FULL), decisions=[decision]), "dry_run": True}
    (found,) = findings(snapshot)
    assert found.change == "autoscaler.dry_run: false"
    assert found.evidence == "3 replicas are needed, 1 ordered"


@pytest.mark.parametrize("counts", [{}, {"late": 6}])
def test_what_the_sla_allows_needs_no_explanation(counts):
    assert findings(watched(policy(**minute(**counts)), decisions=[ENOUGH])) == []


def test_different_troubles_are_explained_side_by_side(monkeypatch, capsys, as_json):
    document = policy(
        **minute(refused_queue_full=60, refused_rate_limit=6, failed=3),
        model_errors={"requests": 3, "last": "KeyError (model.py:27)"},
    )
    answers = {"/sojourn/autoscaler": decided(ENOUGH), "/sojourn/policy": document}
    monkeypatch.setattr(service_view, "_asker", lambda *_: answers.__getitem__)
    assert len(as_json("explain")["findings"]) == 3
    assert main(["explain"]) == 0
    out = capsys.readouterr().out
    assert "99.5% in time" in out
    assert "1/s queue_full" in out
    assert "evidence: 0.05/s failed, the last with KeyError (model.py:27)" in out
    assert out.count("change:") == 3


def test_the_decisions_are_those_that_the_first_question_has_a_replica_read(monkeypatch, as_json):
    logs = iter([decided(), decided(entry(1000.0, 2, 2, stuck_replicas=1))])
    answers = {"/sojourn/autoscaler": lambda: next(logs), "/sojourn/policy": lambda: policy(**FULL)}
    monkeypatch.setattr(service_view, "_asker", lambda *_: lambda path: answers[path]())
    (found,) = as_json("explain")["findings"]
    assert "replicas do not start" in found["cause"]


@pytest.mark.slow
async def test_a_real_replica_with_a_short_queue_reports_what_is_explained():
    limits = {"late": "refuse", "expert": {"max_queue_rows": 1}}
    sla = {"response_time_ms": 5000, "percentile": 99}
    async with emulated_service(GOOGLENET_P4, sla=sla, limits=limits) as service:
        transport = httpx.ASGITransport(app=InferenceApp(service, "1"))
        async with httpx.AsyncClient(transport=transport, base_url="http://replica") as client:
            body = {
                "inputs": [{"name": "input", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}]
            }
            sent = [client.post("/v2/models/m/infer", json=body) for _ in range(20)]
            answers = await asyncio.gather(*sent)
        assert {answer.status_code for answer in answers} == {200, 503}
        await service.tick()
        snapshot = watched(service.explain(), decisions=[ENOUGH])
    assert "queue_full" in snapshot["refused_per_s_by_reason"]
    # Which one depends on what else this machine does.
    (found,) = findings(snapshot)
    assert found.change.startswith(("autoscaler.expert.burst_factor", "ray_actor_options.num_cpus"))
