from types import SimpleNamespace
from typing import Any, NamedTuple

from deployments.pipelines.serving import ray_scaling
from deployments.pipelines.serving.ray_scaling import NEED, scale


def context(target, **needs):
    raw = {
        NEED + stage: {
            f"replica{at}": [SimpleNamespace(value=9.0), SimpleNamespace(value=value)]
            for at, value in enumerate(values)
        }
        for stage, values in needs.items()
    }
    return SimpleNamespace(target_num_replicas=target, raw_metrics=raw)


class Id(NamedTuple):
    name: str


def decide(**contexts):
    decisions, state = scale({Id(name): made for name, made in contexts.items()})
    assert state == {}
    return {made.name: number for made, number in decisions.items()}


def test_fractions_of_several_pipelines_are_added_before_they_are_rounded():
    front = context(2, heavy=[1.2, 1.3], light=[0.2, 0.3])
    found = decide(PipelineReplica=front, heavy=context(1), light=context(3))
    assert found == {"PipelineReplica": 2, "heavy": 3, "light": 1}
    front = context(1, heavy=[0.1] * 30)
    assert decide(PipelineReplica=front, heavy=context(1))["heavy"] == 3


def test_the_pipeline_itself_is_scaled_as_a_service_by_its_report(monkeypatch):
    front = context(2, heavy=[1.5])
    front.raw_metrics["offered_total"] = {"replica0": []}
    monkeypatch.setitem(
        ray_scaling._policies, Id("PipelineReplica"), lambda asked: (7 if asked is front else 0, {})
    )
    assert decide(PipelineReplica=front, heavy=context(1)) == {"PipelineReplica": 7, "heavy": 2}


def test_without_a_report_nothing_changes():
    # Reports that are too old are gone, and their names stay.
    stale: list[dict[str, Any]] = [{}, {NEED + "heavy": {"a": []}}]
    for reports in stale:
        front = SimpleNamespace(target_num_replicas=2, raw_metrics=reports)
        found = decide(PipelineReplica=front, heavy=context(5))
        assert found == {"PipelineReplica": 2, "heavy": 5}


def test_a_wrong_report_scales_nothing(caplog):
    wrong = SimpleNamespace(target_num_replicas=2, raw_metrics={NEED + "heavy": {"a": [None]}})
    assert decide(PipelineReplica=wrong, heavy=context(3)) == {"PipelineReplica": 2, "heavy": 3}
    assert "replicas are kept as they are" in caplog.text
