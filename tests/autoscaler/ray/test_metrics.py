import warnings
from dataclasses import fields

from autoscaler.decision import Decision

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray warns while it is imported
    from autoscaler.ray import metrics


def test_every_metric_is_a_field_of_a_decision() -> None:
    assert set(metrics._GAUGES) <= {field.name for field in fields(Decision)}
