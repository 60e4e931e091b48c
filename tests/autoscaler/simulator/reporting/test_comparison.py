import pytest

from autoscaler.simulator.reporting.comparison import Comparison, in_joules, percent
from policy.errors import InvalidInputError
from tests.support.autoscaling.simulated_runs import comparison, run


def test_the_rows_begin_with_the_cheapest():
    rows = comparison().rows
    assert [row.name for row in rows] == ["ray", "oracle", "sojourn"]


@pytest.mark.parametrize(
    "runs",
    [
        (),
        (run("a"), run("a")),
        (run("a"), run("b", seconds=10)),
    ],
)
def test_runs_must_be_comparable(runs):
    with pytest.raises(InvalidInputError, match="comparison"):
        Comparison(runs)


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


def test_energy_is_in_a_suitable_unit():
    written = [in_joules(j) for j in (None, 0, 12.34, 4567, 1.5e6, 7e12)]
    assert written == ["-", "0 J", "12.3 J", "4.57 kJ", "1.50 MJ", "7,000 GJ"]
