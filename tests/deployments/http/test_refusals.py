"""The pace of refusals, on an event loop in virtual time."""

import asyncio
from typing import cast

import pytest

from deployments.batcher.front_meter import FrontMeter
from deployments.http.refusals import MAX_HOLD_S, MAX_HOLD_TOO_LATE_S, SHARE, RefusalPacer
from tests.support.virtual_loop import VirtualLoop

REQUEST_S = 200e-6


class Front:
    """A front that refuses clients, each of which tries again as soon as it is refused."""

    def __init__(self, *, too_late: bool) -> None:
        self.loop = VirtualLoop()
        self.held_s: list[float] = []
        self.meter = FrontMeter(
            self.loop.call_soon,
            self.loop.call_later,
            clock=lambda: self.loop.now_s,
            thread_clock=lambda: self.loop.cpu_s,
            process_clock=lambda: self.loop.cpu_s,
        )
        self.pacer = RefusalPacer(
            cast(asyncio.AbstractEventLoop, self.loop), self.meter, lambda: self.loop.now_s
        )
        self._too_late = too_late

    def refuse(self, client: "Client") -> None:
        self.meter.request_read(self.loop.now_s)
        self.loop.work(REQUEST_S)
        client.read_s = self.loop.now_s
        self.pacer.add(client, b"", b"", too_late=self._too_late)


class Client:
    def __init__(self, front: Front, *, tries_again: bool = True) -> None:
        self.front, self.read_s, self._tries_again = front, 0.0, tries_again

    def send(self, at_s: float) -> None:
        self.front.loop.read_at(at_s, lambda: self.front.refuse(self))

    def write(self, start: bytes, end: bytes) -> None:
        now_s = self.front.loop.now_s
        self.front.held_s.append(now_s - self.read_s)
        if self._tries_again:
            self.send(now_s)


def test_a_loop_that_is_not_busy_refuses_at_the_end_of_the_iteration() -> None:
    front = Front(too_late=False)
    for number in range(100):  # 2% of the loop's time
        Client(front, tries_again=False).send(1 + 0.01 * number)
    front.loop.run_until(3.0)
    assert len(front.held_s) == 100
    assert max(front.held_s) < 1e-4


@pytest.mark.parametrize("other_work", [0.0, 0.4, 0.8])
def test_clients_that_try_again_at_once_leave_the_loop_half_of_its_idle_time(
    other_work: float,
) -> None:
    front = Front(too_late=True)
    for number in range(4000):  # a request each millisecond

        def answer() -> None:
            front.meter.request_read(front.loop.now_s)
            front.loop.work(1e-3 * other_work)

        if other_work:
            front.loop.read_at(1 + 1e-3 * number, answer)
    for _ in range(100):
        Client(front).send(1.0)
    front.loop.run_until(5.0)
    taken_s = len(front.held_s) * REQUEST_S
    may_take_s = (1 + SHARE - other_work) / 2 * 4.0
    # Other work raises the cost that the pacer takes a refusal for.
    assert (0.3 if other_work else 0.85) * may_take_s < taken_s < 1.15 * may_take_s


def test_refusals_that_the_loop_has_time_for_are_not_held() -> None:
    """As many as HAProxy makes of 1,000 requests a second for which one replica has no room."""
    front = Front(too_late=False)
    for number in range(5000):
        Client(front, tries_again=False).send(1 + number / 2000)
    front.loop.run_until(4.0)
    assert len(front.held_s) == 5000
    assert max(front.held_s) < 0.005


@pytest.mark.parametrize("too_late", [False, True])
def test_nobody_is_held_longer_than_promised(too_late: bool) -> None:
    """However many there are: the rest of the hold is what reading them all takes."""
    front = Front(too_late=too_late)
    clients = 1000
    for _ in range(clients):
        Client(front).send(1.0)
    front.loop.run_until(3.0)
    longest_s = MAX_HOLD_TOO_LATE_S if too_late else MAX_HOLD_S
    assert len(front.held_s) > clients
    assert max(front.held_s) <= longest_s + clients * REQUEST_S + 0.01


def test_what_another_replica_could_answer_leaves_first() -> None:
    front = Front(too_late=True)
    order: list[str] = []

    class Named:
        def __init__(self, name: str) -> None:
            self.name = name

        def write(self, start: bytes, end: bytes) -> None:
            order.append(self.name)

    def read() -> None:
        front.meter.request_read(front.loop.now_s)
        front.loop.work(REQUEST_S)
        front.pacer.add(Named("too late"), b"", b"", too_late=True)
        front.pacer.add(Named("refused"), b"", b"")

    for _ in range(50):
        front.loop.read_at(1.0, read)
    front.loop.run_until(1.02 + MAX_HOLD_S)
    assert order.count("refused") == 50
    assert order.index("too late") > 10
