"""A history is brought to the autoscaler beside its decisions, once, and asked for again."""

import logging
from concurrent.futures import Future
from dataclasses import replace

import numpy as np
import pytest

from autoscaler.controller import Autoscaler
from autoscaler.history.feed import FIRST_PAUSE_S, LONGEST_PAUSE_S, RATES_WITHIN_S, HistoryFeed
from autoscaler.history.learning import DAY_S, FleetSetting, Learned, learn
from autoscaler.history.learning_worker import Question
from autoscaler.history.prometheus import UnreachableError
from autoscaler.history.traces import Trace
from policy.errors import InvalidInputError

CODE = 7
NOW_S = 1_700_000_000.0
SETTING = FleetSetting(0.01, 0.99, 60.0, 20.0, 20.0, 22.0)


class WatchedFleet(Autoscaler):
    """An autoscaler of which only what the feed needs is known."""

    def __init__(self) -> None:
        super().__init__()
        self.setting: FleetSetting | None = SETTING
        self.watched = 30.0
        self.taken: list[Learned] = []

    def fleet_setting(self) -> FleetSetting | None:
        return self.setting

    def watched_s(self, now_s: float) -> float:
        return self.watched

    def learn(self, learned: Learned) -> None:
        super().learn(learned)
        self.taken.append(learned)


class Beside:
    """Loads and learns when it is told to."""

    def __init__(self) -> None:
        self.loads: list[Future[bytes | None]] = []
        self.questions: list[Question] = []
        self.answers: list[Future[Learned]] = []

    def load(self) -> "Future[bytes | None]":
        self.loads.append(Future())
        return self.loads[-1]

    def learner(self, packed: bytes, question: Question) -> "Future[Learned]":
        assert packed == b"packed"
        self.questions.append(question)
        self.answers.append(Future())
        return self.answers[-1]


@pytest.fixture
def beside() -> Beside:
    return Beside()


@pytest.fixture
def fleet() -> WatchedFleet:
    return WatchedFleet()


@pytest.fixture
def feed(beside: Beside) -> HistoryFeed:
    return HistoryFeed("Model", beside.load, beside.learner)


def learned(end_s: float = NOW_S - 3600) -> Learned:
    counts = np.random.default_rng(0).poisson(20, 1200).astype(float)
    trace = Trace(counts, 1, 0, True).ending_at(int(end_s) // 10 * 10)
    return learn(trace, SETTING)


def asked(feed: HistoryFeed, beside: Beside, fleet: WatchedFleet, now_s: float = NOW_S) -> None:
    """Have the feed load and ask."""
    feed.follow(now_s, CODE, fleet)
    beside.loads[-1].set_result(b"packed")
    feed.follow(now_s + 1, CODE, fleet)


def test_a_history_is_taken_over_once(
    feed: HistoryFeed, beside: Beside, fleet: WatchedFleet, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.setting = None
    assert feed.follow(NOW_S, CODE, fleet) == "; its history is being read"
    assert not beside.loads
    fleet.setting = SETTING
    for second in range(3):
        assert feed.follow(NOW_S + second, CODE, fleet) == "; its history is being read"
    assert len(beside.loads) == 1
    beside.loads[0].set_result(b"packed")
    for second in range(3, 9):
        assert feed.follow(NOW_S + second, CODE, fleet) == "; its history is being read"
    assert beside.questions == [Question(SETTING, NOW_S + 3, NOW_S + 3)]
    beside.answers[0].set_result(learned())
    with caplog.at_level(logging.INFO, "ray.serve"):
        assert feed.follow(NOW_S + 9, CODE, fleet) == ""
    assert "Model: learned from 0.0 days of history" in caplog.text
    assert (len(fleet.taken), feed.settled) == (1, CODE)
    for second in range(10, 15):
        assert feed.follow(NOW_S + second, CODE, fleet) == ""
    assert (len(beside.loads), len(fleet.taken)) == (1, 1)


def test_without_the_rates_of_replicas_it_waits_for_a_minute(
    feed: HistoryFeed, beside: Beside, fleet: WatchedFleet
) -> None:
    fleet.setting = replace(SETTING, sla_rate_per_s=0.0)
    feed.follow(NOW_S, CODE, fleet)
    assert not beside.loads
    fleet.watched = RATES_WITHIN_S + 1
    asked(feed, beside, fleet)
    assert beside.questions[0].setting == fleet.setting


def test_a_server_that_does_not_answer_is_asked_again_ever_more_seldom(
    feed: HistoryFeed, beside: Beside, fleet: WatchedFleet, caplog: pytest.LogCaptureFixture
) -> None:
    times_s, remark = [], ""
    for second in range(4000):
        questions = len(beside.questions)
        remark = feed.follow(NOW_S + second, CODE, fleet)
        if beside.loads and not beside.loads[-1].done():
            beside.loads[-1].set_result(b"packed")
        if len(beside.questions) > questions:
            times_s.append(second)
            beside.answers[-1].set_exception(UnreachableError("http://p does not answer"))
    assert remark == "; its history is not known yet: http://p does not answer"
    pauses = np.diff(times_s)
    assert FIRST_PAUSE_S <= pauses[0] <= FIRST_PAUSE_S + 4
    assert all(LONGEST_PAUSE_S <= pause <= LONGEST_PAUSE_S + 4 for pause in pauses[6:])
    assert caplog.text.count("its history is not known yet") == 1
    beside.loads.clear()
    feed.follow(NOW_S + 10**4, CODE, fleet)
    beside.loads[-1].set_result(b"packed")
    feed.follow(NOW_S + 10**4, CODE, fleet)
    beside.answers[-1].set_result(learned())
    assert feed.follow(NOW_S + 10**4, CODE, fleet) == ""
    assert len(fleet.taken) == 1


def test_what_cannot_be_used_is_told_and_left(
    feed: HistoryFeed, beside: Beside, fleet: WatchedFleet
) -> None:
    asked(feed, beside, fleet)
    beside.answers[0].set_exception(InvalidInputError("history week.csv: has no rows"))
    told = "; its history is not used: history week.csv: has no rows"
    for second in range(2, 1000):
        assert feed.follow(NOW_S + second, CODE, fleet) == told
    assert (len(beside.loads), feed.settled, fleet.taken) == (1, CODE, [])
    # Another history in the config is another try; and without one there is nothing to tell.
    assert feed.follow(NOW_S + 1000, CODE + 1, fleet) == "; its history is being read"
    assert feed.follow(NOW_S + 1001, 0, fleet) == ""


def test_a_history_that_does_not_fit_changes_nothing(
    feed: HistoryFeed, beside: Beside, fleet: WatchedFleet
) -> None:
    fleet._monitor.history.observe(NOW_S, np.ones(100))
    before = fleet.state_dict()
    asked(feed, beside, fleet)
    beside.answers[0].set_result(replace(learned(), load={}))
    assert feed.follow(NOW_S + 2, CODE, fleet).startswith("; its history is not used: ")
    assert fleet.state_dict() == before


def test_a_store_without_the_history_is_asked_again(
    feed: HistoryFeed, beside: Beside, fleet: WatchedFleet
) -> None:
    feed.follow(NOW_S, CODE, fleet)
    beside.loads[0].set_result(None)
    assert "it is not in the cluster's store" in feed.follow(NOW_S + 1, CODE, fleet)
    feed.follow(NOW_S + 1 + FIRST_PAUSE_S, CODE, fleet)
    assert len(beside.loads) == 2


def test_without_a_report_the_history_stays_the_same(
    feed: HistoryFeed, beside: Beside, fleet: WatchedFleet
) -> None:
    assert feed.follow(NOW_S, None, fleet) == ""
    asked(feed, beside, fleet)
    feed.follow(NOW_S + 2, None, fleet)
    beside.answers[0].set_result(learned())
    assert feed.follow(NOW_S + 3, None, fleet) == ""
    assert len(fleet.taken) == 1


@pytest.mark.parametrize("settled", [0, CODE])
def test_a_service_that_knows_its_past_reads_no_history(
    feed: HistoryFeed, beside: Beside, fleet: WatchedFleet, settled: int
) -> None:
    feed.settled = settled
    fleet.watched = DAY_S + 1 if not settled else 30
    for second in range(5):
        assert feed.follow(NOW_S + second, CODE, fleet) == ""
    assert not beside.loads
