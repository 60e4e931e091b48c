import math

import pytest

from autoscaler.settings import AutoscalerSettings
from policy.errors import InvalidInputError


def test_settings_survive_as_floats():
    settings = AutoscalerSettings(
        window_s=20,
        forecast="linear",
        hold_s=60,
        burst_factor=1.5,
        retries=3,
        windows=0.95,
        risk=0.1,
        standbys=2,
        standby_price=0.1,
    )
    values = settings.to_floats()
    assert all(type(value) is float for value in values.values())
    assert all(name.startswith("settings_") for name in values)
    assert AutoscalerSettings.from_floats(values) == settings


def test_settings_of_none_survive():
    restored = AutoscalerSettings.from_floats(AutoscalerSettings().to_floats())
    assert restored.hold_s is None
    assert restored.risk is None


def test_an_automatic_number_of_standbys_survives():
    settings = AutoscalerSettings(standbys="auto")
    assert AutoscalerSettings.from_floats(settings.to_floats()) == settings


def test_missing_settings_keep_their_defaults():
    assert AutoscalerSettings.from_floats({"settings_hold_s": 5.0}) == AutoscalerSettings(hold_s=5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("window_s", 0.5),
        ("window_s", 301),
        ("window_s", "10"),
        ("window_s", True),
        ("hold_s", -1),
        ("hold_s", math.nan),
        ("burst_factor", 0.9),
        ("backlog_drain_s", 0),
        ("request_delay_ms", -0.1),
        ("retry_delay_ms", math.inf),
        ("retries", 1.5),
        ("retries", -1),
        ("retries", None),
        ("forecast", "oracle"),
        ("forecast", 1),
        ("risk", 0.0),
        ("risk", 0.9),
        ("windows", None),
        ("windows", 1.0),
        ("windows", 0.2),
        ("idle_s", -1),
        ("standbys", -1),
        ("standbys", 1.0),
        ("standbys", True),
        ("standbys", "many"),
        ("standbys", None),
        ("standby_price", 0.0),
        ("standby_price", 1.1),
    ],
)
def test_an_error_names_the_wrong_setting_in_one_line(name, value):
    with pytest.raises(InvalidInputError, match=f"^{name}: must be .+ not [^\n]+$"):
        AutoscalerSettings(**{name: value})


@pytest.mark.parametrize(
    "values",
    [
        {"settings_forecast": 99.0},
        {"settings_retries": math.nan},
        {"settings_standbys": 0.5},
        {"settings_standbys": -2.0},
    ],
)
def test_an_invalid_float_of_a_setting_is_refused(values):
    with pytest.raises(InvalidInputError):
        AutoscalerSettings.from_floats(values)
