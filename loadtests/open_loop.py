"""The locustfile of `sojourn loadtest`, which sends requests on a fixed schedule.

With several workers, worker k of n sends the requests k, k + n, k + 2n, … of the schedule; with
one, Locust's only process is also the worker. A worker queues each request when it is due. Its
users, one per connection, take requests from that queue. The load test shape, which runs in
Locust's master, keeps those users running, and ends the test when every request has finished or
timed out.
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
from locust.runners import MasterRunner, WorkerRunner

from loadtests.answers import Case, read_cases
from loadtests.metrics import Metrics, serve_metrics
from loadtests.records import GOOD, Outcome, Records, outcome_name
from loadtests.run import (
    SETTINGS_VARIABLE,
    WORKER_VARIABLE,
    Settings,
    examples_kept,
)
from loadtests.user import InferenceUser, share_connections

# Time for the users to start, and for the message to reach them, before the first request is due.
HEAD_START_S = 0.25
# Messages between the master and its workers: the start of the schedule, and a worker's progress.
BEGIN, PROGRESS = "sojourn-begin", "sojourn-progress"
REPORT_EVERY_S = 0.25
# A worker that has not reported its end so long after its last request timed out never will.
PATIENCE_S = 5.0
SHOW_EVERY_S = 1.0 if sys.stderr.isatty() else 10.0
MAX_EXAMPLE_LENGTH = 300

settings = Settings.load(Path(os.environ[SETTINGS_VARIABLE]))


class OpenLoop:
    """A worker's part of a running test: the requests that are due, and the records of the others.

    Parameters
    ----------
    worker : int
        From 0.
    """

    def __init__(self, worker: int) -> None:
        self.worker = worker
        mine = slice(worker, None, settings.workers)
        scheduled_s = np.load(settings.schedule)
        self.records = Records.begin(scheduled_s[mine])
        self.cases = read_cases(Path(settings.cases))
        # Consecutive requests should not be consecutive in the file.
        order = np.random.default_rng(settings.seed).permutation(len(self.cases))
        self.case_of = order[np.arange(scheduled_s.size)[mine] % order.size].tolist()
        self.due: SimpleQueue[int] = SimpleQueue()
        self.outstanding = 0
        self.dispatched = 0
        self.start_s = 0.0
        self.begun_cpu_s = 0.0
        self.metrics = Metrics()
        self.examples: dict[str, list[dict[str, Any]]] = {}

    def begin(self, start_s: float, environment: Environment) -> None:
        """Send the schedule from `start_s` on, by ``time.perf_counter``."""
        self.start_s, self.begun_cpu_s = start_s, time.process_time()
        gevent.spawn(self.dispatch)
        gevent.spawn(self.report_progress, environment)

    def dispatch(self) -> None:
        """Queue each request when it is due."""
        for number, due_s in enumerate(self.records.scheduled_s.tolist()):
            wait_s = self.start_s + due_s - time.perf_counter()
            if wait_s > 0:
                gevent.sleep(wait_s)
            self.records.queued[number] = self.outstanding >= settings.connections_per_worker
            self.outstanding += 1
            self.dispatched += 1
            self.due.put(number)

    def send_next(self, user: InferenceUser) -> None:
        """Wait for the next request that is due, and send it."""
        number = self.due.get()
        records = self.records
        due_s = self.start_s + records.scheduled_s[number]
        case = self.cases[self.case_of[number]]
        waited_s = time.perf_counter() - due_s
        if waited_s > settings.timeout_s:
            # Its client would have given up while the request waited for a connection.
            outcome, sent_s, finished_s = int(Outcome.TIMEOUT), np.nan, time.perf_counter()
            self.note_failure(outcome, case, f"never sent: no connection free in {waited_s:.1f} s")
        else:
            outcome, sent_s, finished_s = user.infer(case, due_s)
        records.outcome[number] = outcome
        records.sent_s[number] = sent_s - self.start_s
        records.finished_s[number] = finished_s - self.start_s
        if outcome == Outcome.OK and case.label_true is not None:
            records.label_true[number] = case.label_true
        self.outstanding -= 1
        self.metrics.observe(outcome, finished_s - due_s, sent_s - due_s)

    def note_failure(self, outcome: int, case: Case, fault: str) -> None:
        """Keep the first failure of each kind, and a few wrong answers, as examples."""
        kind = outcome_name(outcome)
        kept = self.examples.setdefault(kind, [])
        if len(kept) < examples_kept(kind):
            kept.append(
                {
                    "kind": kind,
                    "at_s": time.perf_counter() - self.start_s,
                    "request": shortened(case.body.decode(errors="replace")),
                    "fault": shortened(fault),
                }
            )

    @property
    def ended(self) -> bool:
        """Whether every request has finished or timed out."""
        scheduled_s = self.records.scheduled_s
        if self.dispatched == scheduled_s.size:
            last_due_s = float(scheduled_s[-1]) if scheduled_s.size else 0.0
            overdue_s = time.perf_counter() - self.start_s - last_due_s
            return self.outstanding == 0 or overdue_s > settings.timeout_s + 1
        return False

    def report_progress(self, environment: Environment) -> None:
        """Tell the master how far this worker is, again and again."""
        while True:
            outcome = self.records.outcome
            good, wrong = int(np.isin(outcome, GOOD).sum()), int((outcome == Outcome.WRONG).sum())
            counts = (
                *(self.dispatched, good, wrong),
                *(self.dispatched - self.outstanding - good - wrong, self.outstanding),
            )
            report = {"worker": self.worker, "counts": counts, "ended": self.ended}
            assert environment.runner is not None
            environment.runner.send_message(PROGRESS, report)
            gevent.sleep(REPORT_EVERY_S)

    def save(self) -> None:
        """Write the records, and what else is to be told."""
        self.records.save(Path(settings.records.format(self.worker)))
        examples = [example for kept in self.examples.values() for example in kept]
        cpu_s = time.process_time() - self.begun_cpu_s
        notes = {"start_s": self.start_s, "cpu_s": cpu_s, "examples": examples}
        Path(settings.notes.format(self.worker)).write_bytes(orjson.dumps(notes))


class Conductor:
    """The master's part of a test: it begins, shows the progress, and ends with its workers."""

    def __init__(self) -> None:
        self.start_s: float | None = None
        self.reports: dict[int, dict[str, Any]] = {}

    def begin(self, environment: Environment) -> None:
        """Let all workers begin at the same time."""
        self.start_s = time.perf_counter() + HEAD_START_S
        if settings.metrics_port is not None:
            serve_metrics(settings.metrics_host, settings.metrics_port)
        assert environment.runner is not None
        # All workers run on this machine, where they share the clock.
        environment.runner.send_message(BEGIN, {"start_s": self.start_s})
        gevent.spawn(self.show_progress)

    @property
    def ended(self) -> bool:
        """Whether every worker has ended, or has had the time for it."""
        ended = [report["ended"] for report in self.reports.values()]
        if len(ended) == settings.workers and all(ended):
            return True
        longest_s = settings.duration_s + settings.timeout_s + PATIENCE_S
        return self.start_s is not None and time.perf_counter() - self.start_s > longest_s

    def show_progress(self) -> None:
        """Print the progress on stderr, again and again."""
        line_end = "\r" if sys.stderr.isatty() else "\n"
        assert self.start_s is not None
        while True:
            gevent.sleep(SHOW_EVERY_S)
            counts = [report["counts"] for report in self.reports.values()]
            sums = [sum(column) for column in zip(*counts, strict=True)] or [0] * 5
            elapsed_s = max(0.0, time.perf_counter() - self.start_s)
            line = (
                f"loadtest: {min(elapsed_s, settings.duration_s):.0f} of "
                f"{settings.duration_s:.0f} s: {sums[0]} requests, {sums[1]} answered, "
                f"{sums[2]} wrong, {sums[3]} failed, {sums[4]} in flight"
            )
            print(f"{line:<100}", end=line_end, file=sys.stderr, flush=True)  # noqa: T201


def shortened(text: str) -> str:
    """Return the beginning of a text, with the number of characters left out."""
    left_out = len(text) - MAX_EXAMPLE_LENGTH
    return text if left_out <= 0 else f"{text[:MAX_EXAMPLE_LENGTH]} … ({left_out} more characters)"


conductor = Conductor()
part: OpenLoop | None = None
parent = os.getppid()


class ScheduledUser(InferenceUser):
    """A user that sends whichever request is due next."""

    model = settings.model

    @task
    def send_next(self) -> None:
        """Send the next request that is due."""
        assert part is not None
        part.send_next(self)

    def failed(self, outcome: int, case: Case, fault: str) -> None:
        """Keep the first few, as examples for the report."""
        assert part is not None
        part.note_failure(outcome, case, fault)


share_connections(ScheduledUser, settings.connections_per_worker, settings.timeout_s)


class UntilAnswered(LoadTestShape):
    """Keeps one user per connection until the test, or the process that started it, has ended."""

    def tick(self) -> tuple[int, float] | None:
        """Return the number of users and the spawn rate; None ends the test."""
        if conductor.ended or os.getppid() != parent:
            return None
        users = settings.connections_per_worker * settings.workers
        return users, users


def _prepare(environment: Environment, **_: Any) -> None:
    global part
    runner = environment.runner
    assert runner is not None
    if not isinstance(runner, MasterRunner):
        part = mine = OpenLoop(int(os.environ.get(WORKER_VARIABLE, "0")))
        runner.register_message(
            BEGIN, lambda environment, msg: mine.begin(msg.data["start_s"], environment)
        )
    if not isinstance(runner, WorkerRunner):
        runner.register_message(
            PROGRESS,
            lambda environment, msg: conductor.reports.update({msg.data["worker"]: msg.data}),
        )
        events.spawning_complete.add_listener(  # type: ignore[no-untyped-call]
            lambda **_: conductor.begin(environment) if conductor.start_s is None else None
        )


def _end(environment: Environment, **_: Any) -> None:
    # Locust exits with an error after failed requests; here they are part of the result.
    environment.process_exit_code = 0
    if part is not None:
        part.save()
    if conductor.start_s is not None and sys.stderr.isatty():
        print(file=sys.stderr)  # noqa: T201


events.init.add_listener(_prepare)  # type: ignore[no-untyped-call]
events.quitting.add_listener(_end)  # type: ignore[no-untyped-call]
