import math
from typing import Any

from autoscaler.decision import Decision
from autoscaler.ray import metrics


class Recorder:
    """A gauge of Ray's that keeps what it is set to."""

    values: dict[str, list[float]]

    def __init__(self, field):
        self._field = field

    def set(self, value, tags):
        assert tags == {"application": "shop", "deployment": "Model"}
        self.values.setdefault(self._field, []).append(value)


def test_a_value_that_is_not_known_any_more_is_not_shown_on_and_on(monkeypatch):
    """After an outage of the reports, the last predicted service level stayed for good."""
    values: dict[str, list[Any]] = {}
    monkeypatch.setattr(Recorder, "values", values, raising=False)
    monkeypatch.setattr(metrics, "_gauge", Recorder)
    monkeypatch.setattr(metrics, "_shown", set())
    for level in (None, 0.99, None, 0.98):
        metrics.export("shop", "Model", Decision(2, "keep 2", predicted_service_level=level))
    first, gone, again = values["predicted_service_level"]
    assert (first, again) == (0.99, 0.98)
    assert math.isnan(gone)
    assert values["replicas"] == [2, 2, 2, 2]
