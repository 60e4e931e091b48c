"""The config file of a pipeline."""

import numpy as np
import pytest
import yaml

from deployments.pipelines.core.steps import Each, Ensemble, Stage, Switch
from deployments.pipelines.serving.config import AUTOSCALING_POLICY, load_pipeline_file
from policy.errors import InvalidInputError
from tests.support.pipelines.configs import config
from tests.support.readme import ROOT


@pytest.fixture
def load(tmp_path):
    def write_and_load(**changes):
        path = tmp_path / "pipeline.yaml"
        path.write_text(yaml.safe_dump(config(**changes)))
        return load_pipeline_file(path)

    return write_and_load


STAGE = {"stage": {"code": "tests.support.pipelines.stages:Scale"}}


def test_a_stage_with_its_keys(load):
    file = load()
    model, _ = file.pipeline.build()
    assert isinstance(model, Stage)
    assert (model.name, model.place, model.batch_size) == ("doubler", "thread", 4)
    np.testing.assert_array_equal(model.profile.latency_ms, [1.0, 1.1, 1.2, 1.3])
    assert file.pipeline.worker_costs() == {"doubler": 1.0, "again": 2.5}
    assert file.user_config.sla.response_time_ms == 5000


def test_a_model_is_no_pipeline():
    with pytest.raises(InvalidInputError, match=r"applications\.0: is a model, must be a pipeline"):
        load_pipeline_file(ROOT / "configs/digits.yaml")


def test_all_kinds_of_steps(load):
    named = {"stage": {**STAGE["stage"], "name": "other", "workers": 2, "expert": {"cost": 3}}}
    shares = {"percentages": {1: 20, "a": 80}}
    steps = [
        {"ensemble": {"branches": [[STAGE], []], "join": "builtins:sum"}},
        {"switch": {"choose": "builtins:len", "branches": {1: [], "a": []}, "expert": shares}},
        {"each": {"branch": [named], "expert": {"expected_items": 4, "max_items": 9}}},
    ]
    file = load(steps=steps)
    ensemble, switch, each = file.pipeline.build()
    assert isinstance(ensemble, Ensemble)
    assert ensemble.join is sum
    assert isinstance(switch, Switch)
    assert (switch.choose, switch.expected_shares) == (len, {1: 0.2, "a": 0.8})
    assert isinstance(each, Each)
    assert (each.max_items, each.expected_items, each.join([1, 2])) == (9, 4, [1, 2])
    assert file.pipeline.worker_costs() == {"scale": 1.0, "other": 3.0}


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"steps": [{}]}, "a step is one of stage, ensemble, switch and each"),
        ({"steps": [{**STAGE, "each": {"branch": []}}]}, "a step is one of stage"),
        ({"steps": [{"stage": {"code": "a:b", "worker": 2}}]}, r"stage\.worker: unknown key"),
        ({"steps": [{"stage": {"code": "a:b", "workers": 0}}]}, "stage b: workers must be"),
        ({"steps": [STAGE, {"switch": {"choose": "no.mod:f", "branches": {"a": []}}}]}, "no.mod"),
        ({"outputs": [{"name": "y", "datatype": "FLOAT"}]}, "datatype 'FLOAT' is not one of"),
        ({"inputs": []}, "inputs: list should have at least 1"),
        ({"name": "a b"}, "name: "),
    ],
)
def test_what_is_wrong_is_said_in_one_line(load, changes, complaint):
    with pytest.raises(InvalidInputError, match=complaint) as caught:
        load(**changes).pipeline.build()
    assert "\n" not in str(caught.value)


DEPLOYED = {"code": "tests.support.pipelines.stages:Scale", "place": "deployment", "workers": 2}


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"place": "thread", "max_workers": 3}, "need place deployment"),
        ({"place": "process", "ray_actor_options": {}}, "need place deployment"),
        ({"max_workers": 1}, "max_workers must be at least workers, which is 2"),
        ({"ray_actor_options": {"num_cpu": 1}}, r"num_cpu: .*did you mean num_cpus"),
        ({"max_workers": 4}, "stage scale: max_workers needs autoscaling"),
    ],
)
def test_what_is_wrong_with_a_stage_or_its_scaling(load, changes, complaint):
    with pytest.raises(InvalidInputError, match=complaint):
        load(steps=[{"stage": {**DEPLOYED, **changes}}])


def test_what_follows_the_load_needs_ray_to_ask_for_it(tmp_path):
    stage = {"stage": {**DEPLOYED, "max_workers": 4}}
    document = config(steps=[stage], autoscaling={"max_workers": 1})
    (application,) = document["applications"]
    path = tmp_path / "pipeline.yaml"
    for missing in ("autoscaling_config", "{policy_function: "):
        path.write_text(yaml.safe_dump(document))
        with pytest.raises(InvalidInputError, match=f"max_workers needs {missing}"):
            load_pipeline_file(path)
        application["deployments"][0]["autoscaling_config"] = {"max_replicas": 1}
    application["autoscaling_policy"] = {"policy_function": AUTOSCALING_POLICY}
    path.write_text(yaml.safe_dump(document))
    assert load_pipeline_file(path).pipeline.max_replicas() == {"scale": 4}
