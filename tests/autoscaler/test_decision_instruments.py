"""The autoscaler's metrics are fields of its decisions."""

from dataclasses import fields

from autoscaler.decision import Decision
from autoscaler.decision_instruments import DECISION_INSTRUMENTS


def test_every_metric_is_a_field_of_a_decision() -> None:
    assert set(DECISION_INSTRUMENTS) <= {field.name for field in fields(Decision)}
