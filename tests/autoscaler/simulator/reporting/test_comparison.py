import pytest

from autoscaler.simulator.reporting.comparison import Comparison, percent
from policy.objective import ServiceLevelObjective
from tests.support.autoscaling.simulated_runs import run


@pytest.mark.parametrize(
    ("share", "written"),
    [
        (0, "0%"),
        (0.0004, "under 0.1%"),
        (0.98999, "98.9%"),
        (0.99, "99.0%"),
        (0.9949, "99.4%"),
        (0.9992, "99.92%"),
        (0.99996, "99.996%"),
        (1 - 1e-12, "99.999%"),
        (1, "100%"),
    ],
)
def test_less_than_all_never_reads_as_all(share, written):
    assert percent(share) == written


def of_1000(late):
    """Return a run in which so many of every 1000 requests are late, under an SLA of 99.9%."""
    return run("a", seconds=120, late=late / 1000, objective=ServiceLevelObjective(100, 99.9))


@pytest.mark.parametrize(("late", "kept"), [(1, True), (1.01, False)])
def test_999_of_1000_requests_in_time_meet_99_9_percent(late, kept):
    found = of_1000(late)
    assert found.compliant().tolist() == [kept, kept]
    assert found.compliant_windows == kept
    assert Comparison((found,)).row(found).keeps_sla is kept


def test_the_percentile_that_just_leaves_the_late_out_is_not_theirs():
    """Those in time take at most 51 ms, those late at least 150 ms."""
    assert of_1000(1).response_percentile_ms(99.9) == pytest.approx(51)
