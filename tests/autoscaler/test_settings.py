import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.settings import AUTO, AutoscalerSettings
from policy.errors import InvalidInputError

from_0 = st.floats(0, 1e6)


@given(
    st.builds(
        AutoscalerSettings,
        compliant_minutes=st.floats(50, 99.99),
        risk=st.none() | st.floats(1e-6, 0.5),
        window_s=st.floats(1, 300),
        scale_down_delay_s=st.none() | from_0,
        scale_to_zero_delay_s=from_0,
        burst_factor=st.floats(1, 1e3),
        retries=st.integers(0, 100),
        standbys=st.just(AUTO) | st.integers(0, 1000),
    )
)
def test_settings_survive_as_floats(settings):
    values = settings.to_floats()
    assert all(type(value) is float for value in values.values())
    assert all(name.startswith("settings_") for name in values)
    assert AutoscalerSettings.from_floats(values) == settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retries", math.nan),
        ("standbys", 0.5),
        ("standbys", -2.0),
        ("window_s", math.inf),
        ("window_s", -1.0),
    ],
)
def test_an_invalid_float_of_a_setting_is_refused(name, value):
    with pytest.raises(InvalidInputError, match=f"^{name}: "):
        AutoscalerSettings.from_floats({f"settings_{name}": value})
