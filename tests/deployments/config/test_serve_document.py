"""What a config file may say around Sojourn's own parts."""

import copy
import math
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from deployments.config.serve_document import (
    KEYS,
    check_standbys,
    find_applications,
)
from deployments.config.service_config import SLAConfig
from deployments.config.validation import unknown_key
from policy.errors import InvalidInputError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # from pydantic, through Ray
    from ray.serve import schema
    from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

BUILD = "package:build"
POLICY = "package:Policy"
DOCUMENT: dict[str, Any] = {
    "http_options": {"port": 8000},
    "applications": [
        {
            "name": "a",
            "import_path": BUILD,
            "deployments": [
                {
                    "name": "Replica",
                    "ray_actor_options": {"num_cpus": 1},
                    "autoscaling_config": {
                        "min_replicas": 1,
                        "max_replicas": 2,
                        "metrics_interval_s": 1,
                        "policy": {"policy_function": POLICY},
                    },
                    "user_config": {"sla": {"response_time_ms": 100, "percentile": 99}},
                }
            ],
        }
    ],
}


def changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    document = copy.deepcopy(DOCUMENT)
    change(document)
    return document


def replica(document: dict[str, Any]) -> dict[str, Any]:
    entry: dict[str, Any] = document["applications"][0]["deployments"][0]
    return entry


def scaling(document: dict[str, Any]) -> dict[str, Any]:
    config: dict[str, Any] = replica(document)["autoscaling_config"]
    return config


def test_a_valid_file() -> None:
    (application,) = find_applications(DOCUMENT, BUILD, "Replica", POLICY)
    assert application.replicas == (1, 2)
    assert application.actor.num_cpus == 1.0
    assert application.user_config["sla"]["percentile"] == 99


@pytest.mark.parametrize(
    ("place", "model"),
    [
        ("", schema.ServeDeploySchema),
        ("http_options", schema.HTTPOptionsSchema),
        ("applications", schema.ServeApplicationSchema),
        ("deployments", schema.DeploymentSchema),
        ("autoscaling_config", AutoscalingConfig),
        ("policy", AutoscalingPolicy),
        ("ray_actor_options", schema.RayActorOptionsSchema),
        ("sla", SLAConfig),
    ],
)
def test_the_known_keys_are_those_of_ray_serve_and_of_the_sla(place: str, model: Any) -> None:
    assert set(model.model_fields) == KEYS[place]


REPLICA = "applications.0.deployments.0"
SCALING = f"{REPLICA}.autoscaling_config"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(http_option={}), "http_option: unknown key; did you mean http_options"),
        (lambda d: d["http_options"].update(prt=1), "http_options.prt: unknown key; did you mean"),
        (
            lambda d: d["applications"][0].update(rout_prefix="/"),
            "applications.0.rout_prefix: unknown key; did you mean route_prefix?",
        ),
        (
            lambda d: replica(d).update(user_confg={}),
            f"{REPLICA}.user_confg: unknown key; did you mean user_config?",
        ),
        (
            lambda d: replica(d).update(autoscale_config={}),
            f"{REPLICA}.autoscale_config: unknown key; did you mean autoscaling_config?",
        ),
        (
            lambda d: scaling(d).update(min_replica=1),
            f"{SCALING}.min_replica: unknown key; did you mean min_replicas?",
        ),
        (
            lambda d: replica(d)["user_config"]["sla"].update(percentil=99),
            f"{REPLICA}.user_config.sla.percentil: unknown key; did you mean percentile?",
        ),
        (
            lambda d: scaling(d)["policy"].update(function="x"),
            f"{SCALING}.policy.function: unknown key",
        ),
        (
            lambda d: replica(d)["ray_actor_options"].update(cpus=1),
            f"{REPLICA}.ray_actor_options.cpus: unknown key; did you mean num_cpus?",
        ),
        (lambda d: replica(d).update(name="Replika"), f"{REPLICA}.name: must be Replica, not 'Rep"),
        (
            lambda d: d["applications"][0].update(deployments=[]),
            "applications.0.deployments: must have one entry, with the name Replica, not 0",
        ),
        (lambda d: d["applications"][0].update(deployments=7), "deployments: must be a list"),
        (lambda d: d.update(applications=["a"]), "applications.0: must be a mapping, not 'a'"),
        (lambda d: d.update(applications=[None]), "applications.0: must be a mapping, not None"),
        (
            lambda d: d["applications"][0].update(deployments=[None]),
            f"{REPLICA}: must be a mapping, not None",
        ),
        (
            lambda d: d["applications"][0].update(import_path="package:buld"),
            "none has import_path package:build; is package:buld misspelled?",
        ),
        (lambda d: scaling(d).update(max_replicas=0), f"{SCALING}.max_replicas: must be a whole"),
        (lambda d: scaling(d).update(max_replicas=1.5), "max_replicas: must be a whole number"),
        (
            lambda d: scaling(d).update(min_replicas=3),
            f"{SCALING}: min_replicas must be at most max_replicas, not 3 with 2",
        ),
        (
            lambda d: scaling(d).update(initial_replicas=3),
            f"{SCALING}.initial_replicas: must be from 1 to 2, not 3",
        ),
        (
            lambda d: scaling(d).update(metrics_interval_s=10),
            f"{SCALING}.metrics_interval_s: must be above 0 and at most 2",
        ),
        (lambda d: scaling(d).pop("metrics_interval_s"), "metrics_interval_s: must be above 0"),
        (
            lambda d: scaling(d).pop("policy"),
            f"{SCALING}.policy.policy_function: must be {POLICY}, not None",
        ),
        (lambda d: replica(d).pop("user_config"), f"{REPLICA}.user_config.sla: must have response"),
        (
            lambda d: replica(d)["user_config"]["sla"].pop("percentile"),
            f"{REPLICA}.user_config.sla: must have response_time_ms and percentile",
        ),
    ],
)
def test_what_ray_would_take_as_it_is_gets_one_line(
    change: Callable[[dict[str, Any]], object], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(message)) as caught:
        find_applications(changed(change), BUILD, "Replica", POLICY)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("num_cpus", "two", "valid number, not 'two'"),
        ("num_cpus", None, "valid number, not None"),
        ("num_cpus", [1], r"valid number, not \[1\]"),
        ("num_cpus", True, "valid number, not True"),
        ("num_cpus", math.nan, "finite number, not nan"),
        ("num_cpus", math.inf, "finite number, not inf"),
        ("num_cpus", -1, "greater than or equal to 0, not -1"),
        ("num_gpus", "half", "valid number, not 'half'"),
        ("num_gpus", -1, "greater than or equal to 0, not -1"),
        ("memory", "16Gi", "valid number, not '16Gi'"),
        ("port", "x", "valid integer, not 'x'"),
        ("port", None, "valid integer, not None"),
        ("port", 8000.5, "valid integer, not 8000.5"),
        ("port", True, "valid integer, not True"),
        ("port", 0, "greater than or equal to 1, not 0"),
        ("port", 70000, "less than or equal to 65535, not 70000"),
        ("host", None, "valid string, not None"),
        ("host", 5, "valid string, not 5"),
        ("host", "", "must be an address or a host's name, not ''"),
        ("host", "foo bar", "must be an address or a host's name, not 'foo bar'"),
        ("name", None, "valid string, not None"),
        ("name", 5, "valid string, not 5"),
        ("name", "", "at least 1 character, not ''"),
        ("route_prefix", 5, "valid string, not 5"),
        ("route_prefix", "digits", "must be / or begin with / .* not 'digits'"),
        ("route_prefix", "/digits/", "must be / or begin with / .* not '/digits/'"),
        ("import_path", ["a"], r"valid string, not \['a'\]"),
        ("runtime_env", {"working_dir": 5}, "working_dir: input should be a valid string, not 5"),
        ("user_config", [1], r"valid dictionary, not \[1\]"),
    ],
)
def test_a_value_of_the_wrong_kind_is_told_in_one_line(
    key: str, value: object, message: str
) -> None:
    document = copy.deepcopy(DOCUMENT)
    (application,) = document["applications"]
    (entry,) = application["deployments"]
    places = [document["http_options"], application, entry, entry["ray_actor_options"]]
    schemas = ["http_options", "applications", "deployments", "ray_actor_options"]
    # A deployment has a fixed name.
    schema = next(name for name in schemas if key in KEYS[name])
    places[schemas.index(schema)][key] = value
    with pytest.raises(InvalidInputError, match=f"{key}.*{message}") as caught:
        find_applications(document, BUILD, "Replica", POLICY)
    assert "\n" not in str(caught.value)


def test_what_a_replica_takes_where_nothing_is_said() -> None:
    def bare(document: dict[str, Any]) -> None:
        del document["http_options"]
        del replica(document)["ray_actor_options"]
        del document["applications"][0]["name"]

    (application,) = find_applications(changed(bare), BUILD, "Replica", POLICY)
    assert (application.actor.num_cpus, application.actor.num_gpus) == (1, 0)
    assert (application.http.host, application.http.port) == ("127.0.0.1", 8000)
    assert (application.values.name, application.values.route_prefix) == ("default", "/")


def test_a_fixed_number_of_replicas() -> None:
    def fix(document: dict[str, Any]) -> None:
        del replica(document)["autoscaling_config"]
        replica(document)["num_replicas"] = 3

    (application,) = find_applications(changed(fix), BUILD, "Replica", POLICY)
    assert application.replicas == (3, 3)

    def none(document: dict[str, Any]) -> None:
        fix(document)
        replica(document)["num_replicas"] = 0

    with pytest.raises(InvalidInputError, match="num_replicas: must be a whole number"):
        find_applications(changed(none), BUILD, "Replica", POLICY)


def test_an_unknown_key_without_a_near_one_is_told_all() -> None:
    assert unknown_key("zzz", {"b", "a"}) == "unknown key; known are a, b"


def standbys_checked(standbys: int | str, change: Callable[[dict[str, Any]], object]) -> None:
    (application,) = find_applications(changed(change), BUILD, "Replica", POLICY)
    check_standbys(application, standbys)


@pytest.mark.parametrize("standbys", [0, 1, "auto"])
def test_standbys_that_fit_into_max_replicas(standbys: int | str) -> None:
    standbys_checked(standbys, lambda document: None)


def fix_replicas(document: dict[str, Any]) -> None:
    del replica(document)["autoscaling_config"]
    replica(document)["num_replicas"] = 3


def share_a_budget(document: dict[str, Any]) -> None:
    scaling(document)["policy"]["policy_kwargs"] = {"replica_budget": 2}


@pytest.mark.parametrize(
    ("standbys", "change", "problem"),
    [
        (2, lambda document: None, "room for a replica that serves within max_replicas, 2; 2 does"),
        ("auto", lambda document: scaling(document).update(max_replicas=1), "max_replicas, 1"),
        (1, fix_replicas, "needs an autoscaling_config"),
        (1, share_a_budget, "must be 0 with a replica_budget, not 1"),
    ],
)
def test_standbys_without_room_are_refused_in_one_line(
    standbys: int | str, change: Callable[[dict[str, Any]], object], problem: str
) -> None:
    with pytest.raises(InvalidInputError, match=problem) as caught:
        standbys_checked(standbys, change)
    assert str(caught.value).startswith("user_config.autoscaler.standbys: ")
    assert "\n" not in str(caught.value)
