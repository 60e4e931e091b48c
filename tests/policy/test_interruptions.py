"""What holds up a server: its laws, the profile's file, and what it does to response times."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.batching_policy import BatchingPolicy
from policy.errors import InvalidInputError
from policy.front import FrontCosts
from policy.interruptions import Interruptions
from policy.load_lateness import solve_load_lateness_curve
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.response_time.evaluation import evaluate
from policy.table_solving import solve_table

ONE_BY_ONE = BatchingPolicy.from_control_limit(1, 1)
ONE_MS = Profile("m", "d", np.ones(1))
FAST = Profile(
    "mlp", "cpu", 0.02 + 0.003 * np.arange(1, 9), front=FrontCosts(0.045, 0.05, shares_cpu=True)
)
UNEVEN = Interruptions(0.2, (0.1, 0.1, 0.1, 6.0))
SLA = ServiceLevelObjective(20.0, 99.0)

lengths_ms = st.lists(st.floats(0.01, 100), min_size=1, max_size=8).map(tuple)


@given(share=st.floats(0, 0.9), lengths_ms=lengths_ms)
def test_work_and_interruptions_add_up(share: float, lengths_ms: tuple[float, ...]) -> None:
    found = Interruptions(share, lengths_ms)
    held_up_ms = found.per_ms * found.mean_ms
    assert held_up_ms / (1 + held_up_ms) == pytest.approx(share)
    assert found.mean_residual_ms >= share * found.mean_ms / 2 - 1e-12
    assert Interruptions.from_dict(found.to_dict()) == found


@pytest.mark.parametrize("share", [0.1, 0.2])
@pytest.mark.parametrize("lengths_ms", [(1.0,), (0.2, 0.2, 0.2, 3.0)])
@pytest.mark.parametrize("rate_per_s", [300.0, 600.0])
def test_the_mean_is_that_of_pollaczek_and_khinchine(
    share: float, lengths_ms: tuple[float, ...], rate_per_s: float
) -> None:
    """A service of 1 ms has 1 - share of work, and a Poisson number of interruptions in it."""
    found = Interruptions(share, lengths_ms)
    number = found.per_ms * (1 - share)
    second_moment = 1 + number * float(np.mean(np.square(lengths_ms)))
    load = 1e-3 * rate_per_s
    expected_ms = 1 + load * second_moment / (2 * (1 - load))
    evaluation = evaluate(replace(ONE_MS, interruptions=found), ONE_BY_ONE, rate_per_s)
    assert evaluation.mean_response_ms == pytest.approx(expected_ms, rel=0.03)
    assert evaluation.device_busy_fraction == pytest.approx(load, rel=0.01)


@settings(max_examples=10, deadline=None)
@given(share=st.floats(0.05, 0.4), length_ms=st.floats(0.5, 10))
def test_the_same_share_in_longer_pieces_delays_more(share: float, length_ms: float) -> None:
    policy = BatchingPolicy.from_control_limit(1, 8)
    p99_ms = [
        evaluate(
            replace(FAST, interruptions=Interruptions(share, (longest_ms,))), policy, 5000.0
        ).response_percentile_ms(99)
        for longest_ms in (length_ms, 4 * length_ms)
    ]
    assert p99_ms[0] < p99_ms[1]


def test_interruptions_too_short_to_tell_apart_count_as_work() -> None:
    """Of each millisecond of work they would be ten million; they take their share of it alike."""
    tiny, mixed = Interruptions(0.5, (1e-7,)), Interruptions(0.4, (1e-7, 2e-7, 5.0))
    plain, short, uneven, long = (
        evaluate(replace(ONE_MS, interruptions=found), ONE_BY_ONE, 500.0)
        for found in (Interruptions(0.0, (1.0,)), tiny, mixed, Interruptions(0.4, (5.0,)))
    )
    assert short.response_percentile_ms(99) == plain.response_percentile_ms(99)
    assert uneven.mean_response_ms == pytest.approx(long.mean_response_ms, rel=1e-3)


@given(share=st.floats(0, 0.9), lengths_ms=lengths_ms, least_ms=st.floats(0.01, 110))
def test_the_longer_interruptions_come_as_often_without_the_shorter(
    share: float, lengths_ms: tuple[float, ...], least_ms: float
) -> None:
    found = Interruptions(share, lengths_ms)
    kept = found.at_least_ms(least_ms)
    longer = [ms for ms in lengths_ms if ms >= least_ms]
    assert (kept is None) == (not longer)
    if kept is not None:
        per_ms = found.share / found.mean_ms  # of all the time in which there is work
        assert kept.share / kept.mean_ms == pytest.approx(per_ms * len(longer) / len(lengths_ms))


@given(
    share=st.floats(0.01, 0.9),
    recorded=st.lists(st.tuples(st.floats(0.01, 100), st.floats(0.01, 100)), min_size=1),
    least_ms=st.floats(0.01, 110),
)
def test_what_is_dropped_from_a_record_is_work_and_the_time_is_the_same(
    share: float, recorded: list[tuple[float, float]], least_ms: float
) -> None:
    lengths_ms, work_ms = zip(*recorded, strict=True)
    found = Interruptions(share, lengths_ms, work_ms)
    assert Interruptions.from_dict(found.to_dict()) == found
    scaled_ms = found.scaled_work_ms()
    whole_ms = scaled_ms.sum() + sum(lengths_ms)
    assert sum(lengths_ms) / whole_ms == pytest.approx(share)
    kept = found.at_least_ms(least_ms)
    assert (kept is None) == (max(lengths_ms) < least_ms)
    if kept is not None:
        assert kept.lengths_ms == tuple(ms for ms in lengths_ms if ms >= least_ms)
        assert sum(kept.work_ms) + sum(kept.lengths_ms) == pytest.approx(whole_ms)
        assert kept.share == pytest.approx(sum(kept.lengths_ms) / whole_ms)
        if least_ms <= min(lengths_ms):
            assert kept.work_ms == pytest.approx(scaled_ms.tolist())


@pytest.mark.parametrize("rate_per_s", [3000.0, 6000.0])
def test_interruptions_that_follow_each_other_delay_more_than_the_same_in_any_order(
    rate_per_s: float,
) -> None:
    """A tenth of the work in which the loop is held up for as long as it works, and a calm rest."""
    lengths_ms = (0.5,) * 20
    evenly, in_a_row = (1.0,) * 20, (0.05,) * 19 + (19.05,)
    policy = BatchingPolicy.from_control_limit(1, 8)
    any_order, apart, together = (
        evaluate(
            replace(FAST, interruptions=Interruptions(0.2, lengths_ms, work_ms)), policy, rate_per_s
        ).response_percentile_ms(99)
        for work_ms in ((), evenly, in_a_row)
    )
    assert apart < any_order < 0.7 * together


def test_a_front_beside_the_device_is_held_up_and_the_device_is_not() -> None:
    policy = BatchingPolicy.from_control_limit(1, 8)
    front = FrontCosts(0.05, 0.05, shares_cpu=False)
    beside = replace(FAST, latency_ms=np.full(8, 0.2), front=front)
    plain, held_up = (
        evaluate(replace(beside, interruptions=found), policy, 3000.0) for found in (None, UNEVEN)
    )
    assert held_up.response_percentile_ms(99) > 2 * plain.response_percentile_ms(99)
    # The front's share of the time is as before, and so is the device's.
    assert held_up.device_busy_fraction == pytest.approx(plain.device_busy_fraction, rel=0.05)


def test_a_replica_that_is_held_up_takes_less_load_within_the_sla() -> None:
    plain, held_up = (
        solve_load_lateness_curve(replace(FAST, interruptions=found), SLA, waiting_room=256)
        for found in (None, UNEVEN)
    )
    assert held_up.sla_rate_per_s < 0.99 * plain.sla_rate_per_s
    profile = replace(FAST, interruptions=UNEVEN)
    policy = BatchingPolicy.from_control_limit(1, 8)
    level = evaluate(profile, policy, held_up.sla_rate_per_s).service_level(20.0)
    assert level == pytest.approx(0.99, abs=0.002)


def test_a_policy_table_is_the_same_with_interruptions_and_without() -> None:
    """They are in the mean times already, and waiting less does not shorten them."""
    rates = (1000.0, 4000.0)
    assert solve_table(FAST, SLA, rates) == solve_table(
        replace(FAST, interruptions=UNEVEN), SLA, rates
    )


def test_the_profile_file_keeps_them() -> None:
    profile = replace(FAST, interruptions=UNEVEN)
    assert Profile.from_dict(profile.to_dict()).interruptions == UNEVEN
    assert "interruptions" not in FAST.to_dict()


@pytest.mark.parametrize(
    "content",
    [
        {"share": 1.0, "lengths_ms": [1.0]},
        {"share": -0.1, "lengths_ms": [1.0]},
        {"share": 0.1, "lengths_ms": []},
        {"share": 0.1, "lengths_ms": [0.0]},
        {"share": 0.1, "lengths_ms": ["1"]},
        {"share": True, "lengths_ms": [1.0]},
        {"share": 0.1, "lengths_ms": 1.0},
        {"share": 0.1},
        {"share": 0.1, "lengths_ms": [1.0], "work_ms": [1.0, 2.0]},
        {"share": 0.1, "lengths_ms": [1.0], "work_ms": [0.0]},
        {"share": 0.1, "lengths_ms": [1.0], "work_ms": 1.0},
        {"share": 0.1, "lengths_ms": [1.0], "work": [1.0]},
        [0.1],
    ],
)
def test_a_bad_file_is_refused_in_one_line(content: object) -> None:
    with pytest.raises(InvalidInputError, match=r"^interruptions: ") as raised:
        Interruptions.from_dict(content)
    assert "\n" not in str(raised.value)
