import math

import pytest

from policy.errors import InvalidInputError
from policy.try_delays import TryDelays


@pytest.mark.parametrize(("name", "value"), [("reply_delay_ms", math.inf), ("retries", -1)])
def test_an_error_names_the_value_that_is_out_of_range(name, value):
    with pytest.raises(InvalidInputError, match=f"^{name}: must be "):
        TryDelays(**{name: value})
