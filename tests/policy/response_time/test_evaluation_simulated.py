"""Percentiles of many policies against simulations of twelve million requests each.

The simulation is a program of its own, in C, event by event. Its results are kept here as numbers:
the percentiles, their standard errors (from 20 parts of the run), and the mean.
"""

from dataclasses import dataclass

import numpy as np
import pytest

from policy.batching_policy import BatchingPolicy
from policy.profile import Profile
from policy.response_time.evaluation import evaluate
from tests.support.profiles import GOOGLENET_P4, PADDED

#: Larger batches save energy, smaller ones have the higher throughput.
LEAP = Profile("leap", "d", np.array([1.0] * 4 + [6.0] * 4), np.full(8, 10.0))
POWERS_OF_TWO = tuple(0 if n < 4 else 4 if n < 8 else 8 if n < 16 else 16 for n in range(17))
control_limit = BatchingPolicy.from_control_limit


@dataclass(frozen=True)
class Simulated:
    """A policy, and the 50th, 99th and 99.9th percentiles of its simulated response times."""

    profile: Profile
    policy: BatchingPolicy
    rate_per_s: float
    percentiles_ms: tuple[float, float, float]
    standard_errors_ms: tuple[float, float, float]
    mean_ms: float
    standard_error_of_mean_ms: float
    max_queue_rows: int | None = None


# fmt: off
CASES = {
    "a control limit": Simulated(
        GOOGLENET_P4, control_limit(8, 32), 1479.399,
        (5.7816, 11.5263, 13.9661), (0.0009, 0.005, 0.0142), 5.9932, 0.00076),
    "a control limit and a max wait": Simulated(
        GOOGLENET_P4, control_limit(8, 32, 6.0), 887.64,
        (6.1568, 9.1877, 9.4499), (0.001, 0.0, 0.0004), 6.14249, 0.00059),
    "a waiting room of 20": Simulated(
        GOOGLENET_P4, control_limit(8, 8, 4.0), 1832.341,
        (5.5039, 9.2714, 11.161), (0.0014, 0.0127, 0.0213), 5.51085, 0.00166, 20),
    "a waiting room of 40": Simulated(
        GOOGLENET_P4, control_limit(32, 32, 5.0), 2071.159,
        (7.7222, 12.3068, 14.4806), (0.0018, 0.0124, 0.0317), 7.72099, 0.00193, 40),
    "at once, at a load of 0.9": Simulated(
        GOOGLENET_P4, control_limit(1, 32), 2662.919,
        (9.1708, 20.3715, 24.7861), (0.0137, 0.0559, 0.2055), 9.71432, 0.01443),
    "batches of powers of two": Simulated(
        PADDED, BatchingPolicy(POWERS_OF_TWO), 2400.0,
        (4.0092, 6.6848, 7.8051), (0.001, 0.004, 0.0099), 4.07506, 0.00109),
    "the same with a waiting room": Simulated(
        PADDED, BatchingPolicy(POWERS_OF_TWO, 5.0), 3200.0,
        (5.2286, 8.5565, 9.3501), (0.002, 0.0019, 0.0063), 5.32215, 0.00188, 20),
    "repeating the smaller batch": Simulated(
        LEAP, BatchingPolicy((*8 * (0,), *4 * (8,), 4)), 1300.0,
        (9.2816, 15.2695, 18.0246), (0.0012, 0.0049, 0.017), 9.38657, 0.00082),
    "repeating two after three, with a max wait": Simulated(
        GOOGLENET_P4, BatchingPolicy((0, 0, 0, 3, 2), 4.0), 1082.902,
        (4.3338, 19.7078, 29.6899), (0.0077, 0.152, 0.8635), 5.48761, 0.01553),
}
# fmt: on


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_percentiles_and_mean_are_those_of_a_long_simulation(case):
    evaluation = evaluate(
        case.profile, case.policy, case.rate_per_s, max_queue_rows=case.max_queue_rows
    )
    for percentile, simulated_ms, error_ms in zip(
        (50, 99, 99.9), case.percentiles_ms, case.standard_errors_ms, strict=True
    ):
        found_ms = evaluation.response_percentile_ms(percentile)
        # Many response times are equal but for rounding: a percentile on a jump has no error.
        error_ms = np.hypot(error_ms, evaluation.percentile_standard_error_ms(percentile))
        assert found_ms == pytest.approx(simulated_ms, rel=2e-4, abs=4 * error_ms), percentile
    error_ms = 4 * case.standard_error_of_mean_ms
    near = 1e-5 if evaluation.is_exact else 0.005
    assert evaluation.mean_response_ms == pytest.approx(case.mean_ms, rel=near, abs=error_ms)
