"""What is no objective is refused, in one line that says why."""

import math

import pytest

from policy.errors import InvalidInputError
from policy.objective import ServiceLevelObjective, Weights


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"latency_weight": 0}, "latency weight: must be above 0, not 0"),
        ({"latency_weight": math.nan}, "latency weight: must be above 0, not nan"),
        ({"energy_weight": -1}, "energy weight: must be at least 0, not -1"),
        ({"energy_weight": math.inf}, "energy weight: must be at least 0, not inf"),
        ({"max_wait_ms": -1}, "max wait: must be at least 0 ms, not -1"),
        ({"max_wait_ms": math.nan}, "max wait: must be at least 0 ms, not nan"),
    ],
)
def test_weights_out_of_range(arguments, message):
    with pytest.raises(InvalidInputError, match=message):
        Weights(**arguments)


@pytest.mark.parametrize(
    ("response_time_ms", "percentile", "message"),
    [
        (0, 99, "response time: must be above 0 ms, not 0"),
        (math.inf, 99, "response time: must be above 0 ms, not inf"),
        (10, 0, "percentile: must be between 0 and 100, not 0"),
        (10, 100, "percentile: must be between 0 and 100, not 100"),
        (10, math.nan, "percentile: must be between 0 and 100, not nan"),
    ],
)
def test_service_levels_out_of_range(response_time_ms, percentile, message):
    with pytest.raises(InvalidInputError, match=message):
        ServiceLevelObjective(response_time_ms, percentile)
