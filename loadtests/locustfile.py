"""A locustfile to run by hand: ``locust -f loadtests/locustfile.py --host http://127.0.0.1:8000``.

Each user sends one request per second on average, at random (Poisson arrivals). After a slow
answer, a user sends all overdue requests at once, and response times are measured from when a
request was due. `sojourn loadtest` follows a rate exactly and needs no number of users.
"""

import random
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from locust import events, task
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment
from locust.exception import StopTest
from locust.runners import MasterRunner

from loadtests.answers import Case, read_cases
from loadtests.user import InferenceUser, share_connections

REQUESTS_PER_S = 1.0
CONNECTIONS = 1024
TIMEOUT_S = 10.0

cases: list[Case] = []


class ModelUser(InferenceUser):
    """A user that sends real inputs and checks each answer against the model's own."""

    host = "http://127.0.0.1:8000"
    due_s = 0.0

    def on_start(self) -> None:
        """Make the first request due at once."""
        self.due_s = time.perf_counter()

    def wait_time(self) -> float:
        """Return the seconds until the next request is due; 0 if it is overdue."""
        self.due_s += random.expovariate(REQUESTS_PER_S)
        return max(0.0, self.due_s - time.perf_counter())

    @task
    def infer_one(self) -> None:
        """Send the request that is due."""
        self.infer(random.choice(cases), self.due_s)


share_connections(ModelUser, CONNECTIONS, TIMEOUT_S)


def _add_arguments(parser: LocustArgumentParser, **_: Any) -> None:
    parser.add_argument("--model", default="digits", help="Name of the model at the service")


def _prepare(environment: Environment, **_: Any) -> None:
    if isinstance(environment.runner, MasterRunner):
        return  # its workers send the requests
    options = environment.parsed_options
    ModelUser.model = options.model if options else "digits"
    url = (environment.host or ModelUser.host).rstrip("/")
    with TemporaryDirectory(prefix="sojourn-loadtest-") as name:
        path = Path(name) / "cases.jsonl"
        # The expected answers come from torch, which must not be imported into a process that
        # gevent has patched.
        command = [sys.executable, "-m", "loadtests.cases", url, ModelUser.model, str(path)]
        made = subprocess.run(command, capture_output=True, text=True)
        if made.returncode != 0:
            raise StopTest(made.stderr.strip())
        cases[:] = read_cases(path)


events.init_command_line_parser.add_listener(_add_arguments)  # type: ignore[no-untyped-call]
events.test_start.add_listener(_prepare)  # type: ignore[no-untyped-call]
