import warnings
from types import SimpleNamespace

import pytest

from tests.support.pipelines.stages import shift

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray warns while it is imported
    from deployments.pipelines.serving.application import PipelineReplica

from sojourn import Pipeline, Stage


def test_a_replica_without_a_worker_is_replaced_and_not_one_whose_stage_has_no_replica():
    """The replaced ones waited for the same replicas, and answered nothing meanwhile."""
    stages = [Stage(shift, "inside"), Stage(shift, "outside", place="deployment")]
    pipeline = Pipeline(stages, replicas={"outside": None})
    replica = SimpleNamespace(_service=SimpleNamespace(pipeline=pipeline))
    check_health = PipelineReplica.func_or_class.check_health  # type: ignore[attr-defined]
    inside, outside = pipeline.core.stages
    outside.lost = "it has no replica"
    check_health(replica)
    inside.lost = "no worker starts"
    with pytest.raises(RuntimeError, match="no worker starts"):
        check_health(replica)
