import copy
import re
from typing import Any

import pytest
import yaml
from ray.serve import schema
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

from deployments.config import document as ours
from deployments.config import serve_schema
from deployments.config.document import AUTOSCALING_POLICY, load_service_configs
from deployments.config.validation import Place
from policy.errors import InvalidInputError
from tests.support.readme import ROOT

#: Those of pipelines have another form; tests/deployments/pipelines/serving checks them.
CONFIGS = sorted(path for path in ROOT.glob("configs/*.yaml") if "pipeline" not in path.stem)
APPLICATION: Place = ("applications", 0)
REPLICA: Place = (*APPLICATION, "deployments", 0)
SCALING: Place = (*REPLICA, "autoscaling_config")
DOCUMENT: dict[str, Any] = {
    "http_options": {"port": 8000},
    "applications": [
        {
            "name": "a",
            "import_path": "deployments.application:build",
            "args": {"model": {"name": "m", "import_path": "p:C"}},
            "deployments": [
                {
                    "name": "Replica",
                    "ray_actor_options": {"num_cpus": 1},
                    "autoscaling_config": {
                        "min_replicas": 1,
                        "max_replicas": 2,
                        "metrics_interval_s": 1,
                        "upscale_delay_s": 0,
                        "downscale_delay_s": 0,
                        "policy": {"policy_function": AUTOSCALING_POLICY},
                    },
                    "user_config": {"sla": {"response_time_ms": 100, "percentile": 99}},
                }
            ],
        }
    ],
}


def at(*place):
    return ".".join(map(str, place))


def application(document):
    return document["applications"][0]


def replica(document):
    return application(document)["deployments"][0]


def scaling(document):
    return replica(document)["autoscaling_config"]


@pytest.fixture
def load(tmp_path):
    def write_and_load(change):
        document = copy.deepcopy(DOCUMENT)
        change(document)
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump(document))
        return load_service_configs(path)[0]

    return write_and_load


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_the_shipped_configs_are_valid(path):
    for config in ours.load_service_configs(path):
        assert config.user_config.sla.objective.in_words().startswith("99% of requests within ")


#: Ray's models, where they stand in a file, and their keys that do nothing for Sojourn's replicas.
SECTIONS = {
    serve_schema.ServeDocument: (schema.ServeDeploySchema, (), "grpc_options tracing_config"),
    serve_schema.HttpOptions: (
        schema.HTTPOptionsSchema,
        ("http_options",),
        "request_timeout_s root_path ssl_ca_certs ssl_certfile ssl_keyfile ssl_keyfile_password",
    ),
    serve_schema.ApplicationEntry: (
        schema.ServeApplicationSchema,
        APPLICATION,
        "autoscaling_policy",
    ),
    serve_schema.DeploymentEntry: (
        schema.DeploymentSchema,
        REPLICA,
        "backpressure_config gang_scheduling_config max_ongoing_requests max_queued_requests",
    ),
    serve_schema.AutoscalingConfig: (
        AutoscalingConfig,
        SCALING,
        "aggregation_function downscale_delay_s downscale_smoothing_factor smoothing_factor "
        "downscale_to_zero_delay_s downscaling_factor target_ongoing_requests upscale_delay_s "
        "upscale_smoothing_factor upscaling_factor",
    ),
    serve_schema.AutoscalingPolicy: (AutoscalingPolicy, (*SCALING, "policy"), ""),
    serve_schema.ActorOptions: (
        schema.RayActorOptionsSchema,
        (*REPLICA, "ray_actor_options"),
        "",
    ),
}


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.__name__)
def test_each_key_of_rays_schema_is_honored_or_refused(load, section):
    """The check once called a file fine whose keys did nothing, TLS among them."""
    rays, place, refused = SECTIONS[section]
    assert set(section.model_fields) == set(rays.model_fields)
    for key in refused.split():

        def change(document, key=key):
            for part in place:
                document = document[part]
            document[key] = 2.5 if key.endswith("delay_s") else {"policy_function": "x:y"}

        with pytest.raises(InvalidInputError, match=rf"{key}: .*(no effect|must be 0)") as caught:
            load(change)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(http_option={}), "http_option: unknown key; did you mean http_options"),
        (
            lambda d: replica(d)["user_config"]["sla"].update(percentil=99),
            f"{at(*REPLICA)}.user_config.sla.percentil: unknown key; did you mean percentile?",
        ),
        (
            lambda d: replica(d)["user_config"].update(limits={"max_queue_rows": 9}),
            "limits.max_queue_rows: unknown key here; it belongs in user_config.limits.expert",
        ),
        (
            lambda d: replica(d).update(num_cpus=2),
            "num_cpus: unknown key here; it belongs in applications.deployments.ray_actor_options",
        ),
        (
            lambda d: replica(d).update(name="Replika"),
            "deployments: must have one entry, with the name Replica, not 'Replika'",
        ),
        (lambda d: d.update(applications=["a"]), f"{at(*APPLICATION)}: must be a mapping, not 'a'"),
        (
            lambda d: application(d).update(import_path="deployments.application:buld"),
            "is deployments.application:buld misspelled?",
        ),
        (lambda d: application(d).update(args={}), f"{at(*APPLICATION)}.args.model: is required"),
        (
            lambda d: scaling(d).update(min_replicas=3),
            f"{at(*SCALING)}.min_replicas: must be at most max_replicas, 2, not 3",
        ),
        (
            lambda d: scaling(d).update(initial_replicas=3),
            f"{at(*SCALING)}.initial_replicas: must be from 1 to 2, not 3",
        ),
        (
            lambda d: scaling(d).update(metrics_interval_s=10),
            f"{at(*SCALING)}.metrics_interval_s: must be above 0 and at most 2",
        ),
        (
            lambda d: scaling(d).pop("policy"),
            f"{at(*SCALING)}.policy.policy_function: must be {AUTOSCALING_POLICY}, not None",
        ),
        (lambda d: replica(d).pop("user_config"), f"{at(*REPLICA)}.user_config.sla: is required"),
        (
            lambda d: replica(d)["user_config"]["sla"].pop("percentile"),
            f"{at(*REPLICA)}.user_config.sla: is required, with response_time_ms and percentile",
        ),
        (
            lambda d: scaling(d)["policy"].update(policy_kwargs={"replica_budgte": 2}),
            "policy_kwargs.replica_budgte: unknown key; did you mean replica_budget?",
        ),
        (lambda d: d.update(proxy_location="Disabled"), "must be HeadOnly or EveryNode"),
        (lambda d: d["http_options"].update(host="a b"), "must be an address or a host's name"),
        (lambda d: application(d).update(route_prefix="a"), "must be / or begin with / and end"),
        (lambda d: application(d).update(route_prefix="/a/"), "must be / or begin with / and"),
        (lambda d: d["http_options"].update(port=True), "http_options.port: input should be a val"),
        (lambda d: application(d).update(name=""), "name: string should have at least 1 character"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(load, change, message):
    with pytest.raises(InvalidInputError, match=re.escape(message)) as caught:
        load(change)
    assert re.match(r"/.*config\.yaml:\d+: [a-z]", str(caught.value))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("max_batch_size: 0", "args.model.max_batch_size: input should be greater than or equal"),
        ("percentile: 100", "user_config.sla.percentile: input should be less than 100"),
        ("num_cpus: -1", f"{at(*REPLICA)}.ray_actor_options.num_cpus: input should be"),
    ],
)
def test_the_line_is_that_of_the_wrong_key(tmp_path, line, message):
    key = line.partition(":")[0]
    text = (ROOT / "configs/digits.yaml").read_text()
    text = re.sub(rf"(?m)^( +){key}: \d+", rf"\g<1>{line}", text)
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    number = 1 + [one.strip() for one in text.splitlines()].index(line)
    with pytest.raises(InvalidInputError, match=f"^{path}:{number}: .*{re.escape(message)}"):
        load_service_configs(path)[0]


def test_what_a_replica_takes_where_nothing_is_said(load):
    def bare(document):
        del document["http_options"]
        del replica(document)["ray_actor_options"]
        del application(document)["name"]
        del replica(document)["autoscaling_config"]
        replica(document)["num_replicas"] = 3
        replica(document)["user_config"]["sla"] = "p95=50ms"

    config = load(bare)
    assert (config.actor.num_cpus, config.actor.num_gpus) == (1, 0)
    assert (config.http_host, config.http_port) == ("127.0.0.1", 8000)
    assert (config.application, config.route_prefix) == ("default", "")
    assert config.replicas == (3, 3)
    assert config.user_config.sla.objective.in_words() == "95% of requests within 50 ms"
    assert load(lambda document: None).replicas == (1, 2)


def test_two_applications_differ_in_name_and_prefix(load):
    def again(**changes):
        return lambda d: d["applications"].append({**copy.deepcopy(application(d)), **changes})

    for changes, message in (
        ({}, "two have the application 'a'"),
        ({"name": "b"}, "two have the route_prefix '/'"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            load(again(**changes))


def test_an_application_of_another_builder_may_set_whatever_ray_takes(load):
    another = {
        "name": "b",
        "import_path": "mine:app",
        "route_prefix": "/b",
        "deployments": [
            {
                "name": "Mine",
                "max_ongoing_requests": 5,
                "autoscaling_config": {"target_ongoing_requests": 2, "max_replicas": 3},
            }
        ],
    }
    assert load(lambda d: d["applications"].append(another)).application == "a"


def share_a_budget(document):
    scaling(document)["policy"]["policy_kwargs"] = {"replica_budget": 2}


@pytest.mark.parametrize(
    ("standbys", "change", "problem"),
    [
        (1, lambda document: None, None),
        ("auto", lambda document: None, None),
        (2, lambda document: None, "room for a replica that serves within max_replicas, 2; 2 does"),
        ("auto", lambda document: scaling(document).update(max_replicas=1), "max_replicas, 1"),
        (1, lambda document: replica(document).pop("autoscaling_config"), "needs an autoscaling"),
        (1, share_a_budget, "must be 0 with a replica_budget, not 1"),
    ],
)
def test_standbys_need_room(load, standbys, change, problem):
    def with_standbys(document):
        replica(document)["user_config"]["autoscaler"] = {"standbys": standbys}
        change(document)

    if problem is None:
        assert load(with_standbys).user_config.autoscaler.standbys == standbys
    else:
        with pytest.raises(InvalidInputError, match=rf"autoscaler\.standbys: .*{problem}"):
            load(with_standbys)
