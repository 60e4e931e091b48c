import asyncio
from functools import partial
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.standbys import StandbyRoles
from deployments.control.standby_role import (
    SERVING_PERIOD_S,
    STANDBY_PERIOD_S,
    UNKNOWN_AFTER_S,
    StandbyRole,
)
from tests.support.haproxy.standby_fleet import standby_fleet
from tests.support.waiting import wait_for


def roles(number, *, standby):
    me, other = ("me",), ("other",)
    return (
        StandbyRoles(number, 1, other, me) if standby else StandbyRoles(number, 1, me, other)
    ).to_bytes()


class Followed:
    """A role, what it reads, its clock and its changes."""

    def __init__(self, content=None):
        self.content = content
        self.now_s = 0.0
        self.changes: list[bool] = []
        self.nobody_serves = mock.AsyncMock(return_value=False)
        self.role = StandbyRole(
            *("me", lambda: self.content, self.nobody_serves),
            *(self.changes.append, lambda: self.now_s),
        )

    async def reads(self, content, after_s=1.0):
        self.now_s += after_s
        self.content = content
        await self.role.follow()
        return self.role.standby


async def follower(content=None):
    made = Followed(content)
    await made.role.configure(1)
    return made


async def test_a_replica_that_is_told_nothing_serves_and_one_that_stands_by_is_promoted():
    me = await follower()
    assert not me.role.standby
    assert not await me.reads(b"nonsense")
    assert me.role.period_s == SERVING_PERIOD_S
    assert await me.reads(roles(1, standby=True))
    assert me.role.period_s == STANDBY_PERIOD_S
    assert not await me.reads(roles(2, standby=False))
    assert me.changes == [True, False]


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=6))
def test_an_older_publication_is_never_followed(published):
    async def follow():
        me = await follower()
        newest = 0
        for number, standby in published:
            expected = standby if number > newest else me.role.standby
            newest = max(newest, number)
            assert await me.reads(roles(number, standby=standby)) == expected

    asyncio.run(follow())


async def test_a_standby_serves_if_nobody_says_any_more_who_stands_by():
    me = await follower(roles(1, standby=True))
    assert await me.reads(None, UNKNOWN_AFTER_S / 2)
    assert await me.reads(roles(1, standby=True), UNKNOWN_AFTER_S / 2)
    assert not await me.reads(None, UNKNOWN_AFTER_S)
    # The controller sees that it serves, and tells it again.
    assert not await me.reads(roles(1, standby=True))
    assert await me.reads(roles(2, standby=True))


async def test_without_standbys_in_the_configuration_it_serves_and_does_not_read():
    me = await follower(roles(1, standby=True))
    await me.role.configure(0)
    assert not me.role.standby
    assert not await me.reads(roles(2, standby=True))
    await me.role.configure("auto")
    assert me.role.standby


async def test_a_standby_serves_if_nobody_does_until_it_is_told_otherwise():
    me = await follower(roles(1, standby=True))
    me.nobody_serves.return_value = True
    assert not await me.reads(roles(1, standby=True))
    me.nobody_serves.return_value = False
    assert not await me.reads(roles(1, standby=True))
    assert not await me.reads(roles(2, standby=False))
    assert await me.reads(roles(3, standby=True))


@pytest.mark.slow
def test_behind_haproxy_roles_change_without_a_failed_request(tmp_path):
    only_a, only_b = {(200, b"a")}, {(200, b"b")}
    with standby_fleet(tmp_path) as fleet:
        assert wait_for(lambda: fleet.answering() == only_a)
        seen: set[tuple[int, bytes]] = set()

        def answers(expected):
            found = fleet.answering()
            seen.update(found)
            return found == expected

        for numbers, expected in (((2, 0), only_a | only_b), ((1, 1), only_a)):
            fleet.publish(*numbers)
            assert wait_for(partial(answers, expected))
        assert seen <= only_a | only_b
        # Nobody tells the standby that the other one is gone.
        fleet.replicas[0].close()
        assert wait_for(lambda: fleet.answering() == only_b)
        assert not fleet.replicas[1].role.standby
