import numpy as np
import pytest

from autoscaler.settings import AutoscalerSettings
from autoscaler.simulator.autoscalers.registry import (
    AUTOSCALERS,
    FAMILIES,
    choose,
)
from autoscaler.simulator.autoscalers.sojourn import SojournAutoscaler
from autoscaler.simulator.scenario import Scenario
from policy.errors import InvalidInputError
from policy.objective import ServiceLevelObjective
from policy.profile import Profile

SCENARIO = Scenario(
    Profile("model", "device", np.linspace(2.0, 10.0, 8)),
    ServiceLevelObjective(100, 99),
    np.array([100.0, 1700.0, 300.0]),
    autoscaler_settings=AutoscalerSettings(risk=0.05),
)


def made(text):
    (choice,) = choose(text)
    return choice.make(SCENARIO)


def test_the_stock_value_of_a_knob_is_the_published_one():
    assert made("ray").settings == made("ray:2").settings
    assert made("ray").settings.target_ongoing_requests == AUTOSCALERS["ray"].stock
    assert made("knative").settings == made("knative:8").settings  # a full batch
    (*_, tuned) = AUTOSCALERS["ray"].grid()
    assert (tuned.value, tuned.settings) == (8.0, (("downscale_delay_s", 600.0),))
    ray = vars(tuned.make(SCENARIO))["settings"]
    assert (ray.target_ongoing_requests, ray.downscale_delay_s) == (8.0, 600.0)


def test_sojourn_has_the_settings_and_the_bounds_of_the_problem():
    sojourn = made("sojourn")
    assert isinstance(sojourn, SojournAutoscaler)
    assert sojourn.autoscaler.settings == SCENARIO.autoscaler_settings
    assert made("sojourn:95").autoscaler.settings == AutoscalerSettings(compliant_minutes=95)


@pytest.mark.parametrize(
    ("names", "complaint"),
    [
        ("sojourn,horse", "'horse': must be one of"),
        ("ray,ray", "names one twice"),
        ("oracle:2", "oracle has nothing to set"),
        ("ray:fast", "target_ongoing_requests must be a number above 0"),
        ("ray:0", "must be a number above 0"),
        ("ray:inf", "must be a number above 0"),
    ],
)
def test_a_bad_choice_is_rejected_in_one_line(names, complaint):
    with pytest.raises(InvalidInputError, match=complaint) as caught:
        choose(names)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_grid_begins_with_the_stock_setting_and_repeats_nothing(family):
    choices = AUTOSCALERS[family].grid()
    assert (choices[0].value, choices[0].settings) == (None, ())
    assert len({choice.name for choice in choices}) == len(choices) > 3
    assert all(callable(choice.make(SCENARIO).replicas) for choice in choices)
