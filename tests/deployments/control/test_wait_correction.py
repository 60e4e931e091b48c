"""The correction of waits by the share of late requests."""

import numpy as np

from deployments.control.wait_correction import WaitCorrection


def test_waits_shrink_while_too_many_requests_are_late_and_grow_back_after() -> None:
    correction = WaitCorrection()
    for _ in range(30):
        correction.revise(requests=200, late=10, late_share_allowed=0.01)
    assert correction.factor < 0.01
    for _ in range(200):
        correction.revise(requests=200, late=0, late_share_allowed=0.01)
    assert correction.factor == 1.0


def test_waits_settle_where_the_sla_just_holds() -> None:
    """Late requests are proportional to the factor; the correction must find 1% of them."""
    rng = np.random.default_rng(1)
    correction = WaitCorrection()
    lates = []
    for _ in range(300):
        late = int(rng.binomial(300, 0.03 * correction.factor))
        correction.revise(300, late, late_share_allowed=0.01)
        lates.append(late)
    assert np.mean(lates[50:]) / 300 <= 0.012
    assert correction.factor > 0.05


def test_a_few_requests_change_nothing() -> None:
    correction = WaitCorrection()
    assert correction.revise(requests=20, late=5, late_share_allowed=0.01) == 1.0


def test_a_tick_without_requests_changes_nothing() -> None:
    correction = WaitCorrection()
    correction.revise(2000, 100, 0.01)
    factor = correction.factor
    assert correction.revise(0, 0, 0.01) == factor
