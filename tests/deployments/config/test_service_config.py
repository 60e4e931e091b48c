"""The configuration file."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from deployments.config.service_config import (
    AUTOSCALING_POLICY,
    load_service_config,
    load_service_configs,
)
from policy.errors import InvalidInputError

#: Those of pipelines have another form; tests/deployments/pipelines/serving checks them.
CONFIGS = sorted(
    path
    for path in (Path(__file__).parents[3] / "configs").glob("*.yaml")
    if "pipeline" not in path.stem
)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_the_shipped_configs_are_valid(path: Path) -> None:
    for config in load_service_configs(path):
        assert config.user_config.sla.objective.in_words().startswith("99% of requests within ")


def write(tmp_path: Path, content: object) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


SLA = {"response_time_ms": 100, "percentile": 99}
REPLICA = {"name": "Replica", "user_config": {"sla": SLA}}
APPLICATION = {
    "name": "a",
    "import_path": "deployments.application:build",
    "args": {"model": {"name": "m", "import_path": "p:C"}},
    "deployments": [REPLICA],
}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: [", "not YAML in line"),
        ("just words", "applications: missing"),
        ({"applications": []}, "none has import_path deployments.application:build"),
        ({"applications": [APPLICATION, APPLICATION]}, "two have the application 'a'"),
        (
            {"applications": [APPLICATION, {**APPLICATION, "name": "b"}]},
            "two have the route_prefix '/'",
        ),
        (
            {"applications": [APPLICATION, {**APPLICATION, "name": "b", "route_prefix": "/b"}]},
            "has 2 models, must have one here",
        ),
        ({"applications": [{**APPLICATION, "args": {}}]}, "model: field required"),
        (
            {"applications": [{**APPLICATION, "args": {"model": {"name": "a b"}}}]},
            "model.name: string should match pattern",
        ),
        (
            {
                "applications": [
                    {
                        **APPLICATION,
                        "deployments": [
                            {**REPLICA, "user_config": {"sla": {**SLA, "percentile": 100}}}
                        ],
                    }
                ]
            },
            "user_config: sla.percentile",
        ),
    ],
)
def test_a_wrong_file_is_rejected_with_its_path(
    tmp_path: Path, content: object, message: str
) -> None:
    path = write(tmp_path, content)
    with pytest.raises(InvalidInputError) as caught:
        load_service_config(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


def test_a_file_of_bytes_is_rejected_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    path.write_bytes(bytes(range(256)))
    with pytest.raises(InvalidInputError, match=r"weights\.pt: not a YAML file, not even text"):
        load_service_config(path)


def test_the_replicas_and_their_cpus_are_read(tmp_path: Path) -> None:
    scaling = {
        "min_replicas": 2,
        "max_replicas": 5,
        "metrics_interval_s": 1,
        "policy": {"policy_function": AUTOSCALING_POLICY},
    }
    replica = {**REPLICA, "autoscaling_config": scaling, "ray_actor_options": {"num_cpus": 2}}
    config = load_service_config(
        write(tmp_path, {"applications": [{**APPLICATION, "deployments": [replica]}]})
    )
    assert (config.replicas, config.num_cpus) == ((2, 5), 2.0)
    fixed = {**REPLICA, "num_replicas": 3}
    config = load_service_config(
        write(tmp_path, {"applications": [{**APPLICATION, "deployments": [fixed]}]})
    )
    assert (config.replicas, config.num_cpus) == ((3, 3), 1.0)


def test_a_missing_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="No such file"):
        load_service_config(tmp_path / "none.yaml")


@pytest.mark.slow
def test_a_config_and_a_service_do_without_scipy_signal_whose_import_takes_most_of_a_second() -> (
    None
):
    program = "import sys, deployments.serving.service; sys.exit('scipy.signal' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
