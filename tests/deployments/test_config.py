"""The configuration file and its live part."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from deployments.config import (
    AUTOSCALING_POLICY,
    StoreConfig,
    load_service_config,
    load_service_configs,
    parse_args,
    parse_user_config,
)
from modelstore.wire import default_socket
from policy.errors import InvalidInputError
from policy.objective import ServiceLevelObjective, Weights
from policy.profile import Profile

#: Those of pipelines have another form; tests/pipelines/serving checks them.
CONFIGS = sorted(
    path
    for path in (Path(__file__).parents[2] / "configs").glob("*.yaml")
    if "pipeline" not in path.stem
)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_the_shipped_configs_are_valid(path: Path) -> None:
    for config in load_service_configs(path):
        assert config.user_config.sla.objective.in_words().startswith("99% of requests within ")


def test_an_empty_user_config_has_the_default_sla() -> None:
    assert parse_user_config(None).sla.objective.in_words() == "99% of requests within 100 ms"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            {"sla": {"percentile": 100}},
            "user_config: sla.percentile: input should be less than 100",
        ),
        ({"sla": {"percentile": "high"}}, "sla.percentile: input should be a valid number"),
        ({"sla": {"response_time_ms": 0}}, "sla.response_time_ms: input should be greater than 0"),
        ({"sla": {"response_time_ms": float("nan")}}, "sla.response_time_ms: input should be"),
        ({"sla": {"latency": 1}}, "sla.latency: unknown key; known are perc"),
        ({"sla": {"percentil": 1}}, "sla.percentil: unknown key; did you mean percentile?"),
        ({"slo": {}}, "slo: unknown key; did you mean sla?"),
        ({"sla": {"percentile": 0.99}}, "sla.percentile: is in percent; write 99 for 99%"),
        (
            {"policy": {"objective": "speed"}},
            "policy.objective: input should be 'auto', 'sla' or 'weights'",
        ),
        ({"policy": {"energy_weight": -1}}, "policy.energy_weight: input should be greater than"),
        ({"policy": {"latency_weight": 0}}, "policy.latency_weight: input should be greater than"),
        ({"limits": {"waiting_room": 0}}, "limits.waiting_room: input should be greater than"),
        ({"autoscaler": {"horizon": 1}}, "autoscaler: horizon: unknown key; known are "),
        ({"autoscaler": {"history": {"days": 3}}}, "history: must have either `file` or"),
        ({"autoscaler": {"history": {"file": "a", "ends": "noon"}}}, "ends must be `now` or like"),
        ({"autoscaler": {"rsk": 1}}, "autoscaler: rsk: unknown key; did you mean risk?"),
    ],
)
def test_a_wrong_user_config_is_rejected_in_one_line(content: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_user_config(content)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


WITHOUT_ENERGY = Profile("m", "d", np.arange(1.0, 5.0))
WITH_ENERGY = Profile("m", "d", np.arange(1.0, 5.0), energy_mj=np.arange(1.0, 5.0))


def test_the_objective_follows_the_config() -> None:
    sla = {"response_time_ms": 50, "percentile": 95}
    by_default = parse_user_config({"sla": sla})
    assert by_default.policy_objective(WITH_ENERGY) == ServiceLevelObjective(45.0, 95.0)
    assert by_default.policy_objective(WITHOUT_ENERGY) == Weights()
    by_sla = parse_user_config({"sla": sla, "policy": {"objective": "sla"}})
    assert by_sla.policy_objective(WITHOUT_ENERGY) == ServiceLevelObjective(45.0, 95.0)
    by_weights = parse_user_config({"policy": {"objective": "weights", "energy_weight": 2}})
    assert by_weights.policy_objective(WITH_ENERGY) == Weights(1.0, 2.0)


def test_the_sla_at_the_replica_leaves_the_delays_to_the_network() -> None:
    delays = {"request_delay_ms": 3.0, "reply_delay_ms": 2.0}
    config = parse_user_config({"sla": {"response_time_ms": 50}, "autoscaler": delays})
    assert config.sla_at_replica() == ServiceLevelObjective(45.0, 99.0)


def write(tmp_path: Path, content: object) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


SLA = {"response_time_ms": 100, "percentile": 99}
REPLICA = {"name": "Replica", "user_config": {"sla": SLA}}
MODEL = {"name": "m", "import_path": "digits"}
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


@pytest.mark.parametrize("weights", ["store://tf/net@2", "store://digits", "a/file", None])
def test_weights_are_a_model_of_the_store_or_a_file(weights: str | None) -> None:
    assert parse_args({"model": {**MODEL, "weights": weights}}).model.weights == weights


def test_a_wrong_name_of_weights_or_a_wrong_store_is_rejected() -> None:
    with pytest.raises(InvalidInputError, match=r"model\.weights: model name: '\.\.' must be"):
        parse_args({"model": {**MODEL, "weights": "store://../digits"}})
    with pytest.raises(InvalidInputError, match=r"store\.remote"):
        parse_args({"model": MODEL, "store": {"remote": "models/"}})
    with pytest.raises(InvalidInputError, match=r"store\.evict"):
        parse_args({"model": MODEL, "store": {"remote": "s3://models", "eviction": "random"}})


def test_a_model_takes_what_holds_for_it_and_the_rest_from_all() -> None:
    config = parse_user_config(
        {
            "sla": {"response_time_ms": 70, "percentile": 95},
            "limits": {"late": "serve"},
            "models": {"b": {"sla": {"response_time_ms": 500, "percentile": 99}}},
        }
    )
    assert config.for_model("a").sla.response_time_ms == 70
    assert config.for_model("b").sla.response_time_ms == 500
    assert config.for_model("b").limits.late == "serve"


def test_the_models_of_a_deployment_have_names_of_their_own() -> None:
    model = {"name": "m", "import_path": "digits"}
    assert [each.name for each in parse_args({"model": model}).all_models] == ["m"]
    with pytest.raises(InvalidInputError, match="two models have the name 'm'"):
        parse_args({"model": model, "models": [model]})
    with pytest.raises(InvalidInputError, match="load_models"):
        parse_args({"model": model, "load_models": "never"})


def test_each_remote_has_a_manager_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOJOURN_STORE", raising=False)
    one, same, other = (
        StoreConfig(remote=remote, host_bytes=host_bytes).settings()
        for remote, host_bytes in (("s3://a", 1), ("s3://a", 2), ("s3://b", 1))
    )
    assert (one.socket, one.disk) == (same.socket, same.disk)
    assert len({one.socket, other.socket}) == len({one.disk, other.disk}) == 2
    assert one.socket.parent == default_socket().parent
    # The path of a Unix socket is limited to 107 bytes.
    assert len(one.socket.name) < 30
