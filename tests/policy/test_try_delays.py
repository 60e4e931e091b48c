import math

import pytest

from policy.errors import InvalidInputError
from policy.try_delays import TryDelays


def test_sums_of_the_delays():
    delays = TryDelays(request_delay_ms=1.0, reply_delay_ms=2.0, retry_delay_ms=5.0)
    assert delays.round_trip_ms == 3.0
    assert delays.try_ms == 8.0


@pytest.mark.parametrize(("name", "value"), [("reply_delay_ms", math.inf), ("retries", -1)])
def test_an_error_names_the_value_that_is_out_of_range(name, value):
    with pytest.raises(InvalidInputError, match=f"^{name}: must be at least 0"):
        TryDelays(**{name: value})
