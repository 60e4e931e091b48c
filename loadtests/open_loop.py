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

import gevent
from geventhttpclient.client import HTTPClientPool
from geventhttpclient.useragent import RetriesExceeded
from locust import FastHttpUser, LoadTestShape, events, task
from locust.env import Environment
from locust.runners import MasterRunner, WorkerRunner

from deployments.access.credentials import authorization, read_token
from loadtests.answers import Case
from loadtests.records import Outcome
from loadtests.run import SETTINGS_VARIABLE, WORKER_VARIABLE, Settings
from loadtests.sender import PROGRESS, Sender

# Time for the users to start and to receive the message, before the first request is due.
HEAD_START_S = 0.25
# Message to the workers: the start of the schedule.
BEGIN = "sojourn-begin"
# A worker is lost if it has not ended this long after the timeout of its last request.
PATIENCE_S = 5.0
SHOW_EVERY_S = 1.0 if sys.stderr.isatty() else 10.0

settings = Settings.load(Path(os.environ[SETTINGS_VARIABLE]))
#: Sent with every request: the token in the environment.
AUTHORIZATION = authorization(read_token())


class Conductor:
    """The master's part of a test: it starts the workers, shows progress and waits for them."""

    def __init__(self) -> None:
        self.start_s: float | None = None
        self.reports: dict[int, dict[str, Any]] = {}

    def begin(self, environment: Environment) -> None:
        self.start_s = time.perf_counter() + HEAD_START_S
        assert environment.runner is not None
        # All workers run on this machine, where they share the clock.
        environment.runner.send_message(BEGIN, {"start_s": self.start_s})
        gevent.spawn(self.show_progress)

    @property
    def ended(self) -> bool:
        """Return whether every worker has ended or timed out."""
        ended = [report["ended"] for report in self.reports.values()]
        if len(ended) == settings.workers and all(ended):
            return True
        longest_s = settings.duration_s + settings.timeout_s + PATIENCE_S
        return self.start_s is not None and time.perf_counter() - self.start_s > longest_s

    def show_progress(self) -> None:
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


conductor = Conductor()
part: Sender | None = None
parent = os.getppid()


class ScheduledUser(FastHttpUser):
    """A user that sends whichever request is due next, over connections that all users share.

    With shared connections a low rate uses a few warm connections, instead of one per user.
    """

    client_pool = HTTPClientPool(
        concurrency=settings.connections_per_worker,
        connection_timeout=settings.timeout_s,
        network_timeout=settings.timeout_s,
    )
    free_since_s = 0.0

    @task
    def send_next(self) -> None:
        assert part is not None
        part.send_next(self)

    def infer(self, case: Case, due_s: float) -> tuple[int, float, float]:
        """Send a request as `loadtests.sender.User` does, and tell Locust's statistics."""
        assert part is not None
        body: Any = case.body  # Locust takes bytes, too, but its annotation does not
        sent_s = time.perf_counter()
        with self.client.post(
            f"/v2/models/{settings.model}/infer",
            data=body,
            headers={**case.headers, **AUTHORIZATION},
            name="infer",
            catch_response=True,
        ) as response:
            finished_s = time.perf_counter()
            response.request_meta["response_time"] = (finished_s - due_s) * 1000
            error = response.request_meta["exception"]
            status = response.status_code
            outcome: int
            fault: str | None
            if status >= 400:
                outcome = status
                fault = (response.content or b"").decode(errors="replace")
            elif error is not None or status != 200:
                outcome = Outcome.TIMEOUT if _is_timeout(error) else Outcome.CONNECTION
                fault = str(error or f"HTTP {status}")
            else:
                fault = case.fault(response.content)
                outcome = Outcome.OK if case.outputs else Outcome.ANSWERED
                if fault is not None:
                    outcome = Outcome.WRONG
                    response.failure(f"wrong answer: {fault}")
            if fault is not None:
                part.note_failure(outcome, case, fault)
        return outcome, sent_s, finished_s


def _is_timeout(error: BaseException | None) -> bool:
    if isinstance(error, RetriesExceeded):
        error = getattr(error, "original", None)
    return isinstance(error, TimeoutError)


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
        part = mine = Sender(settings, int(os.environ.get(WORKER_VARIABLE, "0")))
        runner.register_message(
            BEGIN, lambda msg, **_: mine.begin(msg.data["start_s"], runner.send_message)
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
