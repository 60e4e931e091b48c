from concurrent.futures import Future

import numpy as np
import orjson
import pytest

from autoscaler.controller import Autoscaler
from autoscaler.forecasting.load_history import LoadHistory
from autoscaler.history.feed import PAUSE_S, HistoryFeed
from autoscaler.history.source import DAY_S

CODE = 7
NOW_S = 1_700_000_000.0


class WatchedFleet(Autoscaler):
    """An autoscaler that counts what it takes over."""

    watched, taken = 30.0, 0

    def watched_s(self, now_s):
        return self.watched

    def learn(self, load):
        super().learn(load)
        self.taken += 1


class Beside:
    """A store that answers when it is asked to."""

    def __init__(self):
        self.loads: list[Future[bytes | None]] = []

    def load(self):
        self.loads.append(Future())
        return self.loads[-1]


def stored(code=CODE):
    history = LoadHistory()
    history.observe(NOW_S - 3600, np.full(1200, 20.0))
    return orjson.dumps({"code": code, "load": history.state_dict()})


def test_a_history_is_taken_over_once():
    beside, fleet = Beside(), WatchedFleet()
    feed = HistoryFeed("Model", beside.load)
    for second in range(3):
        feed.follow(NOW_S + second, 0, fleet)
    assert not beside.loads
    for second in range(3, 6):
        feed.follow(NOW_S + second, CODE, fleet)
    assert (len(beside.loads), fleet.taken) == (1, 0)
    beside.loads[0].set_result(stored())
    for second in range(6, 15):
        feed.follow(NOW_S + second, CODE, fleet)
    assert (len(beside.loads), fleet.taken, feed.settled) == (1, 1, CODE)


@pytest.mark.parametrize("content", [None, b"[]", stored(CODE + 1)])
def test_what_is_not_there_yet_is_asked_for_again(content):
    beside, fleet = Beside(), WatchedFleet()
    feed = HistoryFeed("Model", beside.load)
    feed.follow(NOW_S, CODE, fleet)
    beside.loads[0].set_result(content)
    feed.follow(NOW_S + 1, CODE, fleet)
    feed.follow(NOW_S + PAUSE_S, CODE, fleet)
    assert len(beside.loads) == 1
    feed.follow(NOW_S + 1 + PAUSE_S, CODE, fleet)
    beside.loads[1].set_result(stored())
    feed.follow(NOW_S + 2 + PAUSE_S, CODE, fleet)
    assert (len(beside.loads), fleet.taken) == (2, 1)


def test_a_history_that_does_not_fit_changes_nothing():
    beside, fleet = Beside(), WatchedFleet()
    feed = HistoryFeed("Model", beside.load)
    fleet._monitor.history.observe(NOW_S, np.ones(100))
    before = fleet.snapshot()()
    feed.follow(NOW_S, CODE, fleet)
    beside.loads[0].set_result(orjson.dumps({"code": CODE, "load": {}}))
    for second in range(1, 100):
        feed.follow(NOW_S + second, CODE, fleet)
    assert (len(beside.loads), feed.settled) == (1, CODE)
    assert fleet.snapshot()() == before


@pytest.mark.parametrize("settled", [0, CODE])
def test_a_service_that_knows_its_past_takes_over_no_history(settled):
    beside, fleet = Beside(), WatchedFleet()
    feed = HistoryFeed("Model", beside.load)
    feed.settled = settled
    fleet.watched = DAY_S + 1 if not settled else 30
    for second in range(5):
        feed.follow(NOW_S + second, CODE, fleet)
    assert not beside.loads
