import copy
import re
from typing import Any

import pytest
import yaml

from deployments.config.ray_schema import check_schema
from policy.errors import InvalidInputError
from sojourn.cli import main
from tests.support.readme import ROOT

DIGITS: dict[str, Any] = yaml.safe_load((ROOT / "configs/digits.yaml").read_text())
REPLICA = "applications.0.deployments.0"


def replica(document):
    return document["applications"][0]["deployments"][0]


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda p: p.name)
def test_ray_takes_every_config(path):
    check_schema(yaml.safe_load(path.read_text()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda d: d.update(proxy_location="Nowhere"),
            "proxy_location: input should be 'Disabled', 'HeadOnly' or 'EveryNode', not 'Nowhere'",
        ),
        (
            lambda d: replica(d).update(num_replicas=3),
            f"{REPLICA}: manually setting num_replicas is not allowed when autoscaling_config",
        ),
    ],
)
def test_what_ray_refuses_is_told_in_one_line(change, message):
    document = copy.deepcopy(DIGITS)
    change(document)
    with pytest.raises(InvalidInputError, match=f"^{re.escape(message)}") as caught:
        check_schema(document)
    assert "\n" not in str(caught.value)


def test_neither_a_policy_nor_a_router_is_imported():
    document = copy.deepcopy(DIGITS)
    policy = replica(document)["autoscaling_config"]["policy"]
    policy["policy_function"] = "only_on_the_cluster.policies:Scale"
    router = {"request_router_class": "only_on_the_cluster.routers:Router"}
    replica(document)["request_router_config"] = router
    check_schema(document)


@pytest.mark.slow
def test_the_check_of_a_file_asks_ray(tmp_path, capsys):
    path = tmp_path / "wrong.yaml"
    for name in ("digits.yaml", "digits-pipeline.yaml"):
        document = yaml.safe_load((ROOT / "configs" / name).read_text())
        path.write_text(yaml.safe_dump({**document, "proxy_location": "Nowhere"}))
        assert main(["serve", "--check", str(path)]) == 2
        said = capsys.readouterr().err
        assert re.match(rf"sojourn: {path}:\d+: proxy_location: input should be", said)
        assert said.count("\n") == 1
