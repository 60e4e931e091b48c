import re
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from deployments.config.user_config import parse_user_config
from deployments.http.inference_protocol import parse_request
from deployments.http.signature import Signature
from deployments.models.base import TensorSpec
from sojourn.cli import COMMANDS, cli
from tests.support.readme import ROOT, blocks, commands


def test_the_users_model_works_as_shown():
    (source,) = blocks("python")
    names: dict[str, Any] = {}
    exec(source, names)
    model = names["Doubler"]()
    model.load("cpu")
    (spec,) = model.inputs
    batch = {spec.name: np.arange(6, dtype=spec.numpy_dtype).reshape(2, 3)}
    np.testing.assert_array_equal(model.forward(batch)["y"], 2 * batch["x"])


def test_the_config_shown_is_valid_and_has_the_defaults():
    (shown,) = blocks("yaml")
    content = yaml.safe_load(shown)["user_config"]
    read, default = parse_user_config(content), parse_user_config(None)
    assert read.autoscaler.settings() == default.autoscaler.settings()
    assert read.autoscaler.dry_run == default.autoscaler.dry_run
    assert read.model_copy(update={"autoscaler": default.autoscaler}) == default


def test_every_command_shown_exists():
    makefile = (ROOT / "Makefile").read_text()
    for command in commands():
        if command[0] == "make":
            assert re.search(rf"^{command[1]}:", makefile, flags=re.MULTILINE)
        else:
            assert command[0] == ".venv/bin/sojourn"
            assert command[1] in COMMANDS


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_a_help_text(name):
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0
    assert "--json" in result.output


@pytest.mark.slow
def test_the_environment_for_a_cluster_can_be_sourced(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    result = CliRunner().invoke(cli, ["serve", "--environment"])
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert "export RAY_SERVE_ENABLE_HA_PROXY=1" in lines
    assert "export RAY_AUTH_MODE=token" in lines
    assert (tmp_path / "token").exists()


def test_the_request_shown_is_valid():
    (shown,) = blocks("json")
    signature = Signature((TensorSpec("x", "FP32", (3,)),), (TensorSpec("y", "FP32", (3,)),), 1)
    request = parse_request(shown.encode(), None, signature)
    assert (request.deadline_ms, request.priority, request.rows) == (250, 1, 1)
