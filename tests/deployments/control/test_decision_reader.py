import orjson
import pytest

from autoscaler.scaled_deployments import log_key
from deployments.control.decision_reader import decision_reader, replicas_in

LOG = {"newest": {"replicas": 2}, "decisions": [{"replicas": 2}]}


async def test_the_log_of_this_deployment_is_read_and_is_empty_before_the_first_decision():
    kept = {log_key("shop", "Model"): orjson.dumps(LOG)}
    assert await decision_reader("shop", "Model", kept.get).content() == LOG
    content = await decision_reader("shop", "Other", kept.get).content()
    assert (content["application"], content["newest"], content["decisions"]) == ("shop", None, [])


@pytest.mark.parametrize(
    ("content", "replicas"),
    [
        ({"newest": {"replicas": 3, "target_replicas": 2}}, 3),
        ({"newest": {"replicas": 3, "target_replicas": 2}, "dry_run": True}, 2),
        ({"newest": {"replicas": 0}}, 1),
        ({"newest": None}, 1),
    ],
)
def test_the_newest_decision_tells_how_many_replicas_there_are(content, replicas):
    assert replicas_in(content) == replicas
