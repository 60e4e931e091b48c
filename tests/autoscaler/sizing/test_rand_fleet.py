import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from autoscaler.sizing.rand_fleet import _RESERVE, RandFleet
from policy.load_lateness import LoadLatenessCurve
from policy.try_delays import TryDelays

ALLOWED = 0.01


@st.composite
def fleets(draw):
    """Return replicas that lose just what the SLA allows at their SLA rate, and more beyond."""
    count = len(LoadLatenessCurve.MULTIPLES)
    at_rate = LoadLatenessCurve.MULTIPLES.index(1.0)
    below = sorted(draw(st.lists(st.floats(0, ALLOWED), min_size=at_rate, max_size=at_rate)))
    above = [min(1.0, ALLOWED * 2.0**step) for step in range(1, count - at_rate)]
    gain = draw(st.floats(1.0, 1.4))
    levels = [min(1 - ALLOWED, gain / multiple) for multiple in LoadLatenessCurve.OVERLOADS]
    curve = LoadLatenessCurve(
        draw(st.floats(1.0, 1e5)),
        (*below, ALLOWED, *above),
        overload_levels=tuple(levels),
    )
    return RandFleet(
        curve,
        gain * curve.sla_rate_per_s,
        draw(st.floats(5.0, 1000.0)),
        TryDelays(
            draw(st.floats(0.0, 0.5)), draw(st.floats(0.0, 0.5)), 0.0, draw(st.integers(0, 6))
        ),
    )


@given(fleets(), st.integers(1, 40), st.floats(0.3, 1.5))
def test_a_larger_fleet_of_equally_loaded_replicas_loses_no_more(fleet: RandFleet, replicas, load):
    per_replica_s = load * fleet.curve.sla_rate_per_s
    lost = [fleet.lost_share(n * per_replica_s, n) for n in (replicas, replicas + 1)]
    assert 0 <= lost[1] <= lost[0] + 1e-5  # the rate of tries converges to a millionth


@given(fleets(), st.integers(1, 1000))
def test_a_replica_takes_between_its_own_rate_and_its_capacity(fleet: RandFleet, replicas):
    rate_per_s = fleet.rate_within_sla_per_s(ALLOWED, replicas)
    assert fleet.curve.sla_rate_per_s <= rate_per_s <= fleet.capacity_per_s
    assume(replicas > 1)
    assert rate_per_s >= fleet.rate_within_sla_per_s(ALLOWED, replicas - 1) * (1 - 1e-9)
    if rate_per_s > fleet.curve.sla_rate_per_s:
        assert fleet.keeps(replicas * rate_per_s, replicas, ALLOWED)


@pytest.mark.slow
@given(fleets(), st.floats(0.0, 60.0))
def test_the_fewest_replicas_are_those_of_a_search_one_by_one(fleet: RandFleet, load):
    rate_per_s = load * fleet.curve.sla_rate_per_s
    with_reserve_per_s = rate_per_s / (1 - _RESERVE)

    def keep_the_sla(replicas):
        return replicas >= fleet.curve.replicas_needed(rate_per_s) or (
            replicas * fleet.capacity_per_s >= with_reserve_per_s * (1 - 1e-9)
            and fleet.keeps(with_reserve_per_s, replicas, ALLOWED)
        )

    fewest = next(n for n in range(1, 100) if keep_the_sla(n))
    assert fleet.replicas_needed(rate_per_s, ALLOWED) == fewest
    assert fewest <= fleet.curve.replicas_needed(rate_per_s)


@pytest.mark.parametrize("replicas", [1, 40, 10_000])
def test_a_fleet_far_beyond_its_capacity_loses_the_rest(replicas):
    """Powers of the replicas' number once overflowed."""
    curve = LoadLatenessCurve(
        100.0,
        (*[0.001] * 10, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4),
        overload_levels=tuple(min(0.99, 1.1 / one) for one in LoadLatenessCurve.OVERLOADS),
    )
    fleet = RandFleet(curve, 110.0, 100.0, TryDelays(retries=5))
    assert fleet.lost_share(5 * 110.0 * replicas, replicas) == pytest.approx(0.8, rel=1e-3)


def test_without_retries_each_replica_stands_alone():
    """The larger share counts: that of one replica, not that of a burst of the whole fleet."""
    curve = LoadLatenessCurve(
        100.0,
        tuple(0.001 * 1.4**step for step in range(len(LoadLatenessCurve.MULTIPLES))),
        overload_levels=tuple(min(0.95, 1.15 / one) for one in LoadLatenessCurve.OVERLOADS),
    )
    fleet = RandFleet(curve, 120.0, 100.0, TryDelays(retries=0))
    assert fleet.lost_share(900.0, 10) == pytest.approx(curve.late_share(90.0), rel=1e-6)


def test_replicas_that_serve_late_gain_nothing_by_retries():
    curve = LoadLatenessCurve(
        100.0, tuple(0.001 * 1.4**step for step in range(len(LoadLatenessCurve.MULTIPLES)))
    )
    fleet = RandFleet(curve, 130.0, 100.0, TryDelays(retries=5))
    assert fleet.replicas_needed(1000.0, ALLOWED) == 10
    assert fleet.lost_share(1000.0, 10) == pytest.approx(curve.late_share(100.0))
