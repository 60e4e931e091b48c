"""A worker of a load test, which sends its part of the schedule."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import gevent
import numpy as np
import orjson
from gevent.queue import SimpleQueue

from loadtests.answers import Case, read_cases
from loadtests.idle import Idle, connection_wait_s
from loadtests.records import GOOD, Outcome, Records, outcome_name
from loadtests.run import CASES, NOTES, RECORDS, SCHEDULE, Settings, max_examples

#: Message to the master: a worker's progress.
PROGRESS = "sojourn-progress"
REPORT_EVERY_S = 0.25
MAX_EXAMPLE_LENGTH = 300

#: Sends the master a message: its name and its data.
Send = Callable[[str, dict[str, Any]], None]


class User(Protocol):
    """Sends requests, one at a time."""

    #: Time of reading its last answer, by ``time.perf_counter``.
    free_since_s: float

    def infer(self, case: Case, due_s: float) -> tuple[int, float, float]:
        """Send a request, and check its answer.

        Returns
        -------
        outcome : int
            An `Outcome`, or the status of an HTTP error.
        sent_s, finished_s : float
            By ``time.perf_counter``.
        """


class Sender:
    """A worker's part of a running test: due requests and the records of finished ones.

    Its files are in the working directory. Workers count from 0.
    """

    def __init__(self, settings: Settings, worker: int) -> None:
        self.settings = settings
        self.worker = worker
        mine = slice(worker, None, settings.workers)
        scheduled_s = np.load(SCHEDULE)
        self.records = Records.begin(scheduled_s[mine])
        self.cases = read_cases(Path(CASES))
        # Consecutive requests should not be consecutive in the file.
        order = np.random.default_rng(settings.seed).permutation(len(self.cases))
        self.case_of = order[np.arange(scheduled_s.size)[mine] % order.size].tolist()
        # Request numbers, each with the time and the idle time when it was queued.
        self.due: SimpleQueue[tuple[int, float, float]] = SimpleQueue()
        self.dispatched = self.finished = self.good = self.wrong = 0
        self.start_s = 0.0
        self.begun_cpu_s = 0.0
        self.idle = Idle()
        self.examples: dict[str, list[dict[str, Any]]] = {}

    def begin(self, start_s: float, send: Send) -> None:
        """Send the schedule from `start_s` on, by ``time.perf_counter``."""
        self.start_s, self.begun_cpu_s = start_s, time.process_time()
        gevent.spawn(self.dispatch)
        gevent.spawn(self.report_progress, send)

    def dispatch(self) -> None:
        """Queue each request when it is due."""
        for number, due_s in enumerate(self.records.scheduled_s.tolist()):
            wait_s = self.start_s + due_s - time.perf_counter()
            if wait_s > 0:
                gevent.sleep(wait_s)
            self.dispatched += 1
            self.due.put((number, time.perf_counter(), self.idle.total_s))

    def send_next(self, user: User) -> None:
        """Wait for the next request that is due, and send it."""
        number, queued_s, idle_s = self.due.get()
        records = self.records
        records.connection_wait_s[number] = connection_wait_s(
            user.free_since_s - queued_s, self.idle.total_s - idle_s
        )
        due_s = self.start_s + records.scheduled_s[number]
        case = self.cases[self.case_of[number]]
        waited_s = time.perf_counter() - due_s
        if waited_s > self.settings.timeout_s:
            # Its client would have given up while the request waited for a connection.
            outcome, sent_s, finished_s = int(Outcome.TIMEOUT), np.nan, time.perf_counter()
            self.note_failure(outcome, case, f"never sent: no connection free in {waited_s:.1f} s")
        else:
            outcome, sent_s, finished_s = user.infer(case, due_s)
            user.free_since_s = finished_s
        records.outcome[number] = outcome
        records.sent_s[number] = sent_s - self.start_s
        records.finished_s[number] = finished_s - self.start_s
        self.finished += 1
        self.good += outcome in GOOD
        self.wrong += outcome == Outcome.WRONG

    def note_failure(self, outcome: int, case: Case, fault: str) -> None:
        """Keep the first failure of each kind, and a few wrong answers, as examples."""
        kind = outcome_name(outcome)
        kept = self.examples.setdefault(kind, [])
        if len(kept) < max_examples(kind):
            kept.append(
                {
                    "kind": kind,
                    "at_s": time.perf_counter() - self.start_s,
                    "request": shortened(case.body.decode(errors="replace")),
                    "fault": shortened(fault),
                }
            )

    @property
    def outstanding(self) -> int:
        return self.dispatched - self.finished

    @property
    def ended(self) -> bool:
        """Whether every request has finished or timed out."""
        scheduled_s = self.records.scheduled_s
        if self.dispatched == scheduled_s.size:
            last_due_s = float(scheduled_s[-1]) if scheduled_s.size else 0.0
            overdue_s = time.perf_counter() - self.start_s - last_due_s
            return self.outstanding == 0 or overdue_s > self.settings.timeout_s + 1
        return False

    def progress(self) -> dict[str, Any]:
        """Return this worker's progress: requests due, good, wrong, failed, and in flight."""
        # Counted as they come: scanning the records of a long test would delay requests.
        failed = self.finished - self.good - self.wrong
        counts = (self.dispatched, self.good, self.wrong, failed, self.outstanding)
        return {"worker": self.worker, "counts": counts, "ended": self.ended}

    def report_progress(self, send: Send) -> None:
        """Send the master this worker's progress periodically; never return."""
        while True:
            send(PROGRESS, self.progress())
            gevent.sleep(REPORT_EVERY_S)

    def save(self) -> None:
        self.records.save(Path(RECORDS.format(self.worker)))
        examples = [example for kept in self.examples.values() for example in kept]
        cpu_s = time.process_time() - self.begun_cpu_s
        notes = {"start_s": self.start_s, "cpu_s": cpu_s, "examples": examples}
        Path(NOTES.format(self.worker)).write_bytes(orjson.dumps(notes))


def shortened(text: str) -> str:
    """Return the beginning of a text, with the number of omitted characters."""
    left_out = len(text) - MAX_EXAMPLE_LENGTH
    return text if left_out <= 0 else f"{text[:MAX_EXAMPLE_LENGTH]} … ({left_out} more characters)"
