"""A replica divides its limit among the HAProxies that send to it, and protects itself by it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.haproxy.limit_shares import (
    CROWDED,
    DIVIDE_EVERY_S,
    EQUAL_PART,
    FORGET_AFTER_S,
    MAX_BALANCERS,
    MEMORY_S,
    LimitShares,
    divide,
)

NAMES = st.binary(min_size=1, max_size=4)
DEMANDS = st.dictionaries(NAMES, st.floats(1e-6, 1e9), min_size=1, max_size=20)
LIMITS = st.integers(1, 100_000)


class Replica:
    """Shares in virtual time: every so often each HAProxy sends, and some requests are held."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.now_s = self.held_s = 0.0
        self.shares = LimitShares(lambda: self.limit, lambda: self.held_s)

    def run(self, duration_s: float, held: float, **requests: int) -> dict[str, int | None]:
        """Return what each is told after requests by each, while so many are here."""
        for _ in range(round(duration_s / DIVIDE_EVERY_S)):
            self.now_s += DIVIDE_EVERY_S
            self.held_s += held * DIVIDE_EVERY_S
            for name, count in requests.items():
                self.shares.count(name.encode(), count, self.now_s)
        return {name: self.shares.of(name.encode()) for name in requests}


@given(LIMITS, DEMANDS)
def test_shares_are_the_limit_but_for_rounding_up(limit: int, demands: dict[bytes, float]) -> None:
    shares = divide(limit, demands)
    assert shares.keys() == demands.keys()
    assert min(shares.values()) >= 1
    assert limit <= sum(shares.values()) + 1e-6 * limit
    assert sum(shares.values()) <= limit + len(demands)


@given(LIMITS, NAMES, st.floats(1e-6, 1e9))
def test_one_alone_gets_all(limit: int, name: bytes, demand: float) -> None:
    assert divide(limit, {name: demand}) == {name: limit}


@given(LIMITS, DEMANDS)
def test_shares_but_for_the_equal_part_are_as_the_demands(
    limit: int, demands: dict[bytes, float]
) -> None:
    equal, total = EQUAL_PART * limit / len(demands), sum(demands.values())
    for name, share in divide(limit, demands).items():
        by_demand = (1 - EQUAL_PART) * limit * demands[name] / total
        assert -1e-6 * limit <= share - equal - by_demand <= 1 + 1e-6 * limit


@given(LIMITS, DEMANDS, NAMES, st.floats(1, 100))
def test_who_demands_more_gets_no_less(
    limit: int, demands: dict[bytes, float], name: bytes, factor: float
) -> None:
    demands.setdefault(name, 1.0)
    more = divide(limit, {**demands, name: factor * demands[name]})
    assert more[name] >= divide(limit, demands)[name]


@given(st.integers(1, 1000), st.lists(st.integers(1, 1000), min_size=2, max_size=8))
def test_a_crowded_replica_tells_them_no_more_than_its_limit(limit: int, sent: list[int]) -> None:
    names = {f"h{number}": count for number, count in enumerate(sent)}
    # Little's law sees what has been there for a while.
    told = Replica(limit).run(12 * MEMORY_S, 1.01 * CROWDED * limit, **names)
    assert sum(share for share in told.values() if share) <= limit + len(sent)


@given(st.floats(0, 1e6), st.integers(1, 10**6))
def test_a_single_one_is_always_told_the_whole_limit(held: float, sent: int) -> None:
    assert Replica(40).run(1.0, held, a=sent) == {"a": 40}


def test_without_a_limit_there_is_nothing_to_divide() -> None:
    assert Replica(None).run(1.0, 1e6, a=1, b=1) == {"a": None, "b": None}


def test_a_quiet_one_is_not_refused_while_there_is_room() -> None:
    """A burst of one that hardly sends must find the room that an idle replica has."""
    told = Replica(40).run(5.0, 1.0, busy=100, quiet=1)
    assert min(share for share in told.values() if share) >= 0.9 * 40


def test_a_quiet_one_can_begin_at_a_full_replica() -> None:
    replica = Replica(40)
    told = replica.run(5.0, 40.0, busy=1000, quiet=1)
    assert told == {"busy": 35, "quiet": 6}
    # Its burst moves the shares within a second.
    told = replica.run(1.0, 40.0, busy=1000, quiet=1000)
    assert told["quiet"] is not None
    assert told["quiet"] >= 15


def test_one_that_comes_is_told_its_share_at_once() -> None:
    replica = Replica(40)
    replica.run(20.0, 40.0, a=100)
    replica.shares.count(b"b", 1, replica.now_s)
    assert replica.shares.of(b"b") == pytest.approx(EQUAL_PART * 40 / 2, abs=1)
    assert (replica.shares.of(b"a") or 0) + (replica.shares.of(b"b") or 0) <= 42


def test_one_that_has_gone_is_forgotten() -> None:
    replica = Replica(40)
    assert replica.run(5.0, 40.0, a=100, b=100) == {"a": 21, "b": 20}
    assert replica.run(FORGET_AFTER_S - DIVIDE_EVERY_S, 40.0, a=100) != {"a": 40}
    assert replica.run(3 * DIVIDE_EVERY_S, 40.0, a=100) == {"a": 40}


def test_who_does_not_name_itself_is_told_the_whole_limit() -> None:
    replica = Replica(40)
    replica.run(5.0, 40.0, a=100, b=100)
    assert replica.shares.of(None) == 40


def test_no_number_of_names_takes_more_memory() -> None:
    replica = Replica(40)
    for number in range(3 * MAX_BALANCERS):
        replica.shares.count(b"%d" % number, 1, 0.0)
    assert len(replica.shares.told) == MAX_BALANCERS
    assert math.isfinite(sum(replica.shares.told.values()))
