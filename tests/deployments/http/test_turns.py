"""Long work in turns."""

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.http.turns import TURN_S, Turns


class Loop:
    """Runs callbacks in iterations, on a clock that works move."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.turns_s: list[float] = []
        self._ready: deque[Callable[[], None]] = deque()
        self.turns = Turns(self._ready.append, lambda: self.now_s)

    def work(self, pieces_s: list[float], result: Any) -> Generator[None, None, Any]:
        for piece_s in pieces_s:
            self.now_s += piece_s
            yield
        if isinstance(result, Exception):
            raise result
        return result

    def run(self) -> None:
        while self._ready:
            assert len(self._ready) == 1, "one turn in an iteration"
            began_s = self.now_s
            self._ready.popleft()()
            self.turns_s.append(self.now_s - began_s)


PIECES = st.lists(st.floats(0, 3e-4), max_size=30)


@given(st.lists(PIECES, min_size=1, max_size=6))
def test_works_end_in_order_and_no_turn_is_longer_than_allowed(works: list[list[float]]) -> None:
    loop = Loop()
    done: list[Any] = []
    for number, pieces_s in enumerate(works):
        loop.turns.start(loop.work(pieces_s, number), done.append)
    loop.run()
    assert done == [*range(len(works))]
    assert max(loop.turns_s) <= TURN_S + 3e-4
    assert loop.now_s == pytest.approx(sum(map(sum, works)))


@given(st.lists(PIECES, min_size=1, max_size=6), st.data())
def test_a_cancelled_work_ends_nobody_elses(works: list[list[float]], data: st.DataObject) -> None:
    loop = Loop()
    done: list[Any] = []
    started = [
        loop.turns.start(loop.work(pieces_s, number), done.append)
        for number, pieces_s in enumerate(works)
    ]
    cancelled = data.draw(st.sets(st.sampled_from(range(len(works)))))
    for number in cancelled:
        started[number].cancel()
    loop.run()
    assert done == [number for number in range(len(works)) if number not in cancelled]


def test_an_error_is_told_and_the_next_work_goes_on() -> None:
    loop = Loop()
    done: list[Any] = []
    error = ValueError("it is wrong")
    loop.turns.start(loop.work([1e-3], error), done.append)
    loop.turns.start(loop.work([], "next"), done.append)
    loop.run()
    assert done == [error, "next"]


def test_work_may_be_started_by_work_that_ends() -> None:
    loop = Loop()
    done: list[Any] = []
    loop.turns.start(
        loop.work([], "first"),
        lambda _: loop.turns.start(loop.work([1e-4], "second"), done.append),
    )
    loop.run()
    assert done == ["second"]


@given(st.lists(st.integers(1, 20), min_size=1, max_size=6), st.integers(1, 20))
def test_when_work_would_end_is_known_from_the_sizes_before_it(sizes: list[int], mine: int) -> None:
    """All work takes 0.1 ms per unit of its size."""
    loop = Loop()
    assert loop.turns.ends_in_s(mine) == 0, "nothing is known yet"
    loop.turns.start(loop.work([1e-4] * 7, None), lambda _: None, 7)
    loop.run()
    for size in sizes:
        loop.turns.start(loop.work([1e-4] * size, None), lambda _: None, size)
    given_up = loop.turns.start(loop.work([1e-4] * 9, None), lambda _: None, 9)
    given_up.cancel()
    expected_s = loop.turns.ends_in_s(mine)
    began_s, ended_s = loop.now_s, []
    loop.turns.start(loop.work([1e-4] * mine, None), lambda _: ended_s.append(loop.now_s), mine)
    loop.run()
    assert expected_s == pytest.approx(ended_s[0] - began_s)


@pytest.mark.parametrize("before", [0, 5])
def test_a_stall_during_one_work_is_forgotten(before: int) -> None:
    """As all was expected too late, nothing was parsed, and so the stall never forgotten."""
    loop = Loop()
    for pieces_s in [[1e-4]] * before + [[10.0]]:
        loop.turns.start(loop.work(pieces_s, None), lambda _: None, 1)
        loop.run()
    assert loop.turns.ends_in_s(1) == (1e-4 if before else 10.0)
    loop.now_s += 1.0
    assert loop.turns.ends_in_s(1) == 0, "one is let through"
    loop.turns.start(loop.work([1e-4], None), lambda _: None, 1)
    assert before or loop.turns.ends_in_s(1) == 20.0, "only one"
    loop.run()
    assert loop.turns.ends_in_s(1) == pytest.approx(1e-4)


async def test_a_caller_awaits_the_result_and_may_give_it_up() -> None:
    turns = Turns()
    loop = Loop()
    assert await turns.result(loop.work([0.0] * 3, "mine")) == "mine"
    with pytest.raises(ValueError, match="wrong"):
        await turns.result(loop.work([], ValueError("wrong")))
    pieces = 0

    def endless() -> Generator[None, None, None]:
        nonlocal pieces
        while True:
            pieces += 1
            yield

    task = asyncio.create_task(turns.result(endless()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    before = pieces
    assert await turns.result(loop.work([], "after")) == "after"
    assert pieces == before > 0
