import time
from pathlib import Path

import gevent
import numpy as np
import pytest

from deployments.config.user_config import SLAConfig
from loadtests.records import Outcome
from loadtests.reporting.report import report
from loadtests.run import CASES, SCHEDULE, Settings
from loadtests.schedule import Schedule, Step
from loadtests.sender import Sender

SLA = SLAConfig(response_time_ms=100, percentile=99)
OUTCOMES = [Outcome.ANSWERED, Outcome.OK, Outcome.WRONG, 500, Outcome.TIMEOUT]


def spin(duration_s):
    end_s = time.perf_counter() + duration_s
    while time.perf_counter() < end_s:
        pass


class User:
    """Its requests take time: of the service, or of the generator's only thread."""

    free_since_s = 0.0

    def __init__(self, service_s=0.0, work_s=0.0):
        self.service_s, self.work_s = service_s, work_s
        self.infers = 0

    def infer(self, case, due_s):
        sent_s = time.perf_counter()
        spin(self.work_s / 2)
        gevent.sleep(self.service_s)
        spin(self.work_s / 2)
        self.infers += 1
        return OUTCOMES[self.infers % len(OUTCOMES)], sent_s, time.perf_counter()


@pytest.fixture
def sent(tmp_path, monkeypatch):
    """Send requests that are due at given times, with some users; return the worker."""
    monkeypatch.chdir(tmp_path)
    Path(CASES).write_text(
        '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}\n'
    )

    def send(due_s, users):
        np.save(SCHEDULE, due_s)
        sender = Sender(Settings("m", len(users), 60.0, 1.0, 0), 0)

        def work(user):
            while True:
                sender.send_next(user)
                gevent.sleep(0)

        working = [gevent.spawn(work, user) for user in users]
        sender.start_s = time.perf_counter()
        gevent.spawn(sender.dispatch)
        while not sender.ended:
            gevent.sleep(0.005)
        gevent.killall(working)
        sender.idle.close()
        return sender

    return send


def reported(sender):
    due_s = sender.records.scheduled_s
    return report(sender.records, Schedule(due_s, (Step(1.0, due_s.size),)), SLA)


def test_a_generator_without_cpu_does_not_blame_the_service(sent):
    """All connections are busy most of the time, with answers that wait to be read."""
    found = reported(sent(np.linspace(0, 0.02, 100), [User(work_s=0.002) for _ in range(8)]))
    assert found["generator_lag_ms"]["max"] > 100
    assert found["generator_fell_behind"] is True
    assert found["waited_for_connection"] < 10


def test_a_slow_service_is_not_the_generators_fault(sent):
    sender = sent(np.zeros(20), [User(service_s=0.02) for _ in range(2)])
    assert reported(sender)["waited_for_connection"] >= 15
    # Nine pairs of requests were answered before the last.
    assert sender.records.connection_wait_s.max() > 0.15


def test_progress_counts_what_the_records_have(sent):
    sender = sent(np.zeros(23), [User()])
    outcome = sender.records.outcome
    good = int(sender.records.good.sum())
    wrong = int((outcome == Outcome.WRONG).sum())
    assert 0 < wrong < good < 23
    counts = (23, good, wrong, 23 - good - wrong, 0)
    assert sender.progress() == {"worker": 0, "counts": counts, "ended": True}
