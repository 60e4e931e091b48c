from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from deployments.config.document import load_service_configs
from policy.errors import InvalidInputError
from policy.objective import ServiceLevelObjective
from sojourn.cli import main
from sojourn.project import one_model_config

MODEL = """
import numpy as np
from sojourn import Model, TensorSpec

class Doubler(Model):
    inputs = (TensorSpec("x", "FP32", (3,)),)
    outputs = (TensorSpec("y", "FP32", (3,)),)

    def load(self, device): ...

    def forward(self, batch):
        return {"y": 2 * batch["x"]}
"""
SLAS = st.builds(ServiceLevelObjective, st.floats(0.5, 1e6), st.floats(2, 99.999))


@given(sla=SLAS, max_replicas=st.integers(1, 1000))
def test_the_config_of_a_model_has_its_class_and_sla(tmp_path_factory, sla, max_replicas):
    path = tmp_path_factory.getbasetemp() / "one.yaml"
    path.write_text(one_model_config("my.models:Fast", sla, max_replicas))
    config = load_service_configs(path)[0]
    assert (config.args.model.name, config.args.model.import_path) == ("fast", "my.models:Fast")
    assert config.replicas == (1, max_replicas)
    read = config.user_config.sla.objective
    assert (read.response_time_ms, read.percentile) == pytest.approx(
        (sla.response_time_ms, sla.percentile), rel=1e-14
    )


@pytest.mark.parametrize("name", ["fast", "fast:", ":Fast", "a-b:C", "a:b:c", "a:B C"])
def test_a_name_that_is_no_class_is_an_error(name):
    with pytest.raises(InvalidInputError, match="module:Class"):
        one_model_config(name, ServiceLevelObjective(50, 95))


@pytest.mark.slow
def test_a_class_is_checked_as_its_printed_config_is(tmp_path, monkeypatch, capsys, refused):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "one_command_model.py").write_text(MODEL)
    model = "one_command_model:Doubler"
    assert "needs an SLA: add --sla 50ms@95" in refused("serve", model)
    assert main(["serve", model, "--sla", "50ms@95", "--check"]) == 0
    assert "is fine: 95% of requests within 50 ms" in capsys.readouterr().err
    assert main(["serve", model, "--sla", "50ms@95", "--print-config"]) == 0
    Path("printed.yaml").write_text(capsys.readouterr().out)
    assert main(["serve", "printed.yaml", "--check"]) == 0
    assert "is fine: 95% of requests within 50 ms" in capsys.readouterr().err
    assert "edit printed.yaml" in refused("serve", "printed.yaml", "--sla", "50ms@95")
