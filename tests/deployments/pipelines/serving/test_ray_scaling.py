"""The needs that the replicas of a pipeline report, added up."""

from types import SimpleNamespace

from deployments.pipelines.serving.ray_scaling import NEED, scale


def context(target, **needs):
    """A deployment with `target` replicas; `needs` are, by stage, those that each reports."""
    raw = {
        NEED + stage.replace("pipeline", ""): {
            f"replica{at}": [SimpleNamespace(value=9.0), SimpleNamespace(value=value)]
            for at, value in enumerate(values)
        }
        for stage, values in needs.items()
    }
    return SimpleNamespace(target_num_replicas=target, raw_metrics=raw)


class Deployments:
    def __init__(self, **contexts):
        self.contexts = {_Id(name): made for name, made in contexts.items()}

    def decide(self):
        decisions, state = scale(self.contexts)
        assert state == {}
        return {made.name: number for made, number in decisions.items()}


class _Id:
    def __init__(self, name):
        self.name = name


def test_fractions_of_several_pipelines_are_added_before_they_are_rounded():
    front = context(2, pipeline=[0.4, 0.5], heavy=[1.2, 1.3], light=[0.2, 0.3])
    found = Deployments(PipelineReplica=front, heavy=context(1), light=context(3)).decide()
    assert found == {"PipelineReplica": 1, "heavy": 3, "light": 1}


def test_a_sum_of_fractions_may_be_a_whole_number():
    front = context(1, pipeline=[0.1], heavy=[0.1] * 30)
    assert Deployments(PipelineReplica=front, heavy=context(1)).decide()["heavy"] == 3


def test_without_a_report_nothing_changes():
    deployments = Deployments(PipelineReplica=context(2), heavy=context(5))
    assert deployments.decide() == {"PipelineReplica": 2, "heavy": 5}
    # Reports that are too old are gone, and their names stay.
    empty = SimpleNamespace(target_num_replicas=2, raw_metrics={NEED: {"a": []}})
    assert Deployments(PipelineReplica=empty).decide() == {"PipelineReplica": 2}


def test_a_wrong_report_scales_nothing(caplog):
    wrong = SimpleNamespace(target_num_replicas=2, raw_metrics={NEED: {"a": [None]}})
    assert Deployments(PipelineReplica=wrong, heavy=context(3)).decide() == {
        "PipelineReplica": 2,
        "heavy": 3,
    }
    assert "replicas are kept as they are" in caplog.text
