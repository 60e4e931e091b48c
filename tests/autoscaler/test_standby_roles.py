"""Who serves and who stands by, whatever starts, dies or is asked for."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.reports import ReplicaReport
from autoscaler.standby_roles import (
    TELL_AGAIN_AFTER_S,
    RolesPublisher,
    StandbyRoles,
    roles_key,
)
from tests.support.stores import Store

NAMES = [f"r{number}" for number in range(6)]
#: What may happen before a decision: these replicas run, so many are to serve and to stand by.
STEPS = st.lists(
    st.tuples(st.lists(st.sampled_from(NAMES), unique=True), st.integers(0, 6), st.integers(0, 3)),
    max_size=12,
)


@given(STEPS)
def test_as_many_serve_as_decided_or_as_run_and_one_at_least(
    steps: list[tuple[list[str], int, int]],
) -> None:
    roles = StandbyRoles()
    for running, replicas, standbys in steps:
        before, roles = roles, roles.divided(running, replicas, standbys)
        serving = [one for one in running if not roles.stands_by(one)]
        assert len(serving) == min(len(running), max(1, replicas))
        assert sorted(roles.serving + roles.standbys) == sorted(running)
        # None is promoted while another is demoted.
        promoted = {one for one in serving if before.stands_by(one)}
        demoted = {one for one in roles.standbys if not before.stands_by(one)}
        assert not (promoted and demoted)
        assert roles.divided(running, replicas, standbys) == roles


@given(STEPS, st.integers(0, 6))
def test_a_newcomer_stands_by_only_if_enough_serve(
    steps: list[tuple[list[str], int, int]], replicas: int
) -> None:
    roles = StandbyRoles()
    for running, replicas, standbys in steps:
        roles = roles.divided(running, replicas, standbys)
        assert not roles.stands_by("newcomer") or (standbys and len(roles.serving) >= replicas)


def test_the_oldest_go_on_serving() -> None:
    roles = StandbyRoles().divided(["a", "b", "c"], 3, 0).divided(["a", "b", "c"], 1, 2)
    assert roles.serving == ("a",)
    assert roles.divided(["b", "c"], 1, 2).serving == ("b",)


@given(st.integers(0, 1 << 60), st.integers(0, 9), st.lists(st.sampled_from(NAMES)), st.booleans())
def test_what_is_published_is_read_back(
    number: int, ordered: int, names: list[str], stand_by: bool
) -> None:
    roles = StandbyRoles(
        number, ordered, tuple(names), tuple(reversed(names)), newcomers_stand_by=stand_by
    )
    assert StandbyRoles.from_bytes(roles.to_bytes()) == roles


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b"7", b'{"number": 1}'])
def test_what_cannot_be_read_says_nothing(content: bytes | None) -> None:
    assert StandbyRoles.from_bytes(content) is None


def published(store: Store) -> StandbyRoles | None:
    return StandbyRoles.from_bytes(store.kept.get(roles_key("shop", "Model")))


def publisher(store: Store) -> RolesPublisher:
    made = RolesPublisher("shop", "Model", store)
    store.answer()
    assert made.is_loaded()
    return made


def reports(now_s: float, **standby: bool) -> Sequence[ReplicaReport]:
    values = dict.fromkeys(
        ("offered_total", "refused_total", "completed_total", "queue_length"), 0.0
    )
    values |= {"full_batch_size": 1.0, "full_batch_ms": 1.0}
    values |= {"sla_response_time_ms": 100.0, "sla_percentile": 99.0}
    return [
        ReplicaReport.from_floats(name, now_s, {**values, "standby": float(stands_by)})
        for name, stands_by in standby.items()
    ]


def test_nothing_is_published_before_the_first_standby() -> None:
    store = Store()
    roles = publisher(store)
    roles.publish(1.0, ["a"], 1, 0)
    assert published(store) is None
    roles.publish(2.0, ["a"], 1, 1)
    assert published(store) == roles.roles
    assert roles.roles.stands_by("b")


def test_the_end_of_standbys_is_published() -> None:
    store = Store()
    roles = publisher(store)
    roles.publish(1.0, ["a", "b"], 1, 1)
    assert roles.standbys_of(["a", "b"]) == 1
    roles.publish(2.0, ["a", "b"], 1, 0)
    assert not published(store).newcomers_stand_by
    roles.publish(3.0, ["a"], 1, 0)
    assert published(store).standbys == ()


def test_only_a_change_is_published() -> None:
    store = Store()
    roles = publisher(store)
    for second in range(9):
        roles.publish(float(second), ["a", "b"], 1, 1)
    assert store.saves == 1


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_new_controller_counts_on(is_kept: bool) -> None:
    """Also if it cannot read what was published, by a clock that goes on."""
    store = Store()
    first = publisher(store)
    first.publish(1000.0, ["a", "b"], 1, 1)
    first.publish(1001.0, ["a", "b"], 2, 0)
    number = first.roles.number
    if not is_kept:
        store.kept.clear()
    second = publisher(store)
    assert second.roles == (first.roles if is_kept else StandbyRoles())
    second.publish(1002.0, ["a", "b"], 1, 1)
    assert second.roles.number > number


def test_a_publication_outlives_a_clock_set_back() -> None:
    roles = publisher(Store())
    roles.publish(2000.0, ["a", "b"], 1, 1)
    number = roles.roles.number
    roles.publish(1000.0, ["a", "b"], 2, 0)
    assert roles.roles.number > number


@pytest.mark.parametrize(
    ("reported", "is_told_again"),
    [
        ({"a": False, "b": True}, False),
        ({"a": False, "b": False}, True),
        ({"a": True, "b": True}, True),
        # One hangs, or has just died, and the standby has stepped in.
        ({"b": False}, False),
        ({}, False),
    ],
)
def test_whoever_does_not_follow_is_told_again(
    reported: dict[str, bool], is_told_again: bool
) -> None:
    store = Store()
    roles = publisher(store)
    roles.publish(1000.0, ["a", "b"], 1, 1)
    number = roles.roles.number
    soon_s = 1000.0 + TELL_AGAIN_AFTER_S - 1
    roles.publish(soon_s, ["a", "b"], 1, 1, reports(soon_s, **reported))
    assert roles.roles.number == number
    late_s = 1000.0 + TELL_AGAIN_AFTER_S + 1
    roles.publish(late_s, ["a", "b"], 1, 1, reports(1000.0, **reported))
    assert roles.roles.number == number
    roles.publish(late_s, ["a", "b"], 1, 1, reports(late_s, **reported))
    assert (roles.roles.number > number) == is_told_again
    assert published(store) == roles.roles


def test_a_slow_store_is_waited_for() -> None:
    roles = RolesPublisher("shop", "Model", Store(slow=True))
    assert not roles.is_loaded()


def test_what_was_published_can_be_deleted() -> None:
    store = Store()
    roles = publisher(store)
    roles.publish(1.0, ["a", "b"], 1, 1)
    roles.delete()
    assert published(store) is None
