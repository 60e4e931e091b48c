"""The locustfile of `sojourn loadtest`, which sends requests on a fixed schedule.

A dispatcher queues each request when it is due. Locust users, one per connection, take requests
from that queue. The load test shape keeps those users running, and ends the test when every request
has finished or timed out.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

import gevent  # type: ignore[import-untyped]
import numpy as np
import orjson
from gevent.queue import SimpleQueue  # type: ignore[import-untyped]
from locust import LoadTestShape, events, task
from locust.env import Environment

from loadtests.answers import Case, read_cases
from loadtests.metrics import Metrics
from loadtests.records import GOOD, Outcome, Records
from loadtests.run import SETTINGS_VARIABLE, Settings
from loadtests.user import InferenceUser, share_connections

# Time for the users to start before the first request is due.
HEAD_START_S = 0.25
MAX_EXAMPLES = 3
MAX_EXAMPLE_LENGTH = 300
PROGRESS_EVERY_S = 1.0 if sys.stderr.isatty() else 10.0

settings = Settings.load(Path(os.environ[SETTINGS_VARIABLE]))


class OpenLoop:
    """A running test: the requests that are due, and the records of the others."""

    def __init__(self) -> None:
        self.records = Records.begin(np.load(settings.schedule))
        self.cases = read_cases(Path(settings.cases))
        # Consecutive requests should not be consecutive in the file.
        self.order = np.random.default_rng(settings.seed).permutation(len(self.cases)).tolist()
        self.due: SimpleQueue[int] = SimpleQueue()
        self.outstanding = 0
        self.dispatched = 0
        self.start_s: float | None = None
        self.metrics = Metrics(settings.metrics_host, settings.metrics_port)
        self.examples: list[dict[str, str]] = []

    def dispatch(self) -> None:
        """Queue each request when it is due."""
        assert self.start_s is not None
        for number, due_s in enumerate(self.records.scheduled_s.tolist()):
            wait_s = self.start_s + due_s - time.perf_counter()
            if wait_s > 0:
                gevent.sleep(wait_s)
            self.records.queued[number] = self.outstanding >= settings.connections
            self.outstanding += 1
            self.dispatched += 1
            self.due.put(number)

    def send_next(self, user: InferenceUser) -> None:
        """Wait for the next request that is due, and send it."""
        number = self.due.get()
        assert self.start_s is not None
        records = self.records
        due_s = self.start_s + records.scheduled_s[number]
        case = self.cases[self.order[number % len(self.order)]]
        if time.perf_counter() - due_s > settings.timeout_s:
            # Its client would have given up while the request waited for a connection.
            outcome, sent_s, finished_s = int(Outcome.TIMEOUT), np.nan, time.perf_counter()
        else:
            outcome, sent_s, finished_s = user.infer(case, due_s)
        records.outcome[number] = outcome
        records.sent_s[number] = sent_s - self.start_s
        records.finished_s[number] = finished_s - self.start_s
        if outcome == Outcome.OK and case.label_true is not None:
            records.label_true[number] = case.label_true
        self.outstanding -= 1
        self.metrics.observe(outcome, finished_s - due_s, sent_s - due_s)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start of the schedule."""
        return 0.0 if self.start_s is None else max(0.0, time.perf_counter() - self.start_s)

    @property
    def ended(self) -> bool:
        """Whether every request has finished or timed out."""
        scheduled_s = self.records.scheduled_s
        if self.dispatched == scheduled_s.size:
            last_timeout_s = scheduled_s[-1] + settings.timeout_s + 1
            return self.outstanding == 0 or self.elapsed_s > last_timeout_s
        return False

    def report_progress(self) -> None:
        """Print the progress on stderr, again and again."""
        line_end = "\r" if sys.stderr.isatty() else "\n"
        while True:
            gevent.sleep(PROGRESS_EVERY_S)
            outcome = self.records.outcome
            good, wrong = int(np.isin(outcome, GOOD).sum()), int((outcome == Outcome.WRONG).sum())
            failed = self.dispatched - self.outstanding - good - wrong
            line = (
                f"loadtest: {min(self.elapsed_s, settings.duration_s):.0f} of "
                f"{settings.duration_s:.0f} s: {self.dispatched} requests, {good} answered, "
                f"{wrong} wrong, {failed} failed, {self.outstanding} in flight"
            )
            print(f"{line:<100}", end=line_end, file=sys.stderr, flush=True)  # noqa: T201


def shortened(text: str) -> str:
    """Return the beginning of a text, with the number of characters left out."""
    left_out = len(text) - MAX_EXAMPLE_LENGTH
    return text if left_out <= 0 else f"{text[:MAX_EXAMPLE_LENGTH]} … ({left_out} more characters)"


test = OpenLoop()
parent = os.getppid()


class ScheduledUser(InferenceUser):
    """A user that sends whichever request is due next."""

    model = settings.model

    @task
    def send_next(self) -> None:
        """Send the next request that is due."""
        test.send_next(self)

    def wrong_answer(self, case: Case, fault: str) -> None:
        """Keep the first few, as examples for the report."""
        if len(test.examples) < MAX_EXAMPLES:
            test.examples.append(
                {
                    "request": shortened(case.body.decode(errors="replace")),
                    "fault": shortened(fault),
                }
            )


share_connections(ScheduledUser, settings.connections, settings.timeout_s)


class UntilAnswered(LoadTestShape):
    """Keeps one user per connection until the test, or the process that started it, has ended."""

    def tick(self) -> tuple[int, float] | None:
        """Return the number of users and the spawn rate; None ends the test."""
        if test.ended or os.getppid() != parent:
            return None
        return settings.connections, settings.connections


def _begin(user_count: int, **_: Any) -> None:
    if test.start_s is None and user_count >= settings.connections:
        test.start_s = time.perf_counter() + HEAD_START_S
        gevent.spawn(test.dispatch)
        gevent.spawn(test.report_progress)


def _end(environment: Environment, **_: Any) -> None:
    # Locust exits with an error after failed requests; here they are part of the result.
    environment.process_exit_code = 0
    test.records.save(Path(settings.records))
    Path(settings.examples).write_bytes(orjson.dumps(test.examples))
    if sys.stderr.isatty():
        print(file=sys.stderr)  # noqa: T201


events.spawning_complete.add_listener(_begin)  # type: ignore[no-untyped-call]
events.quitting.add_listener(_end)  # type: ignore[no-untyped-call]
