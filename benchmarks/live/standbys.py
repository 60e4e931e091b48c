"""Promote a standby under load, and kill the only replica that serves, with a standby and without.

    python -m benchmarks.live.standbys [--json]

`sojourn serve` runs configs/emulated-p4.yaml with one replica and one standby. A hundred clients
send 30 requests/s together. The replica that serves gets SIGKILL. Once another stands by, the load
becomes 120/s, which needs both. At last, without standbys, the only replica gets SIGKILL. Each
answer names its process. Takes about a minute.
"""

import http.client
import json
import math
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import yaml

from benchmarks.arguments import json_option
from benchmarks.inputs import EMULATED_P4_CONFIG
from benchmarks.live.local_service import (
    deploy,
    get_json,
    running_replicas,
    running_service,
)
from sojourn.output import print_json, print_table, say

PORT = 8127
LOW_PER_S, HIGH_PER_S = 30.0, 120.0
#: So many that the rate is kept although an answer may take 0.5 s, the SLA.
CLIENTS = 100
#: Who answers is who has answered in the last time of this length.
_RECENT_S = 1.5
#: A replica stands by once it has not answered for so much longer.
_STEADY_S = 2.0
_TIMEOUT_S = 90.0


def standby_document(standbys: int) -> dict[str, Any]:
    """Return the config: one or two processes, of which so many stand by."""
    document: dict[str, Any] = yaml.safe_load(EMULATED_P4_CONFIG.read_text())
    (application,) = document["applications"]
    model = application["args"]["model"]
    model["import_path"] = "benchmarks.live.named_process:NamedProcess"
    (deployment,) = application["deployments"]
    deployment["autoscaling_config"]["max_replicas"] = 2
    # 30/s needs one replica, even if the load is to jump as it did when it began; 120/s needs two.
    deployment["user_config"]["autoscaler"] = {
        "standbys": standbys,
        "window_s": 4,
        "hold_s": 4,
        "burst_factor": 1.4,
        "forecast": "last",
    }
    return document


@dataclass(frozen=True)
class Answer:
    """What came back for a request.

    Attributes
    ----------
    sent_s, done_s : float
        When, by ``time.time``.
    process : int or None
        Who answered; None if the request failed.
    error : str
        How it failed.
    """

    sent_s: float
    done_s: float
    process: int | None
    error: str = ""


class Clients:
    """Clients that send at a rate, each one request at a time, with answers that say who answered.

    Parameters
    ----------
    url : str
        Of the service.
    rate_per_s : float
        Of all together; it may be changed at any time.
    """

    def __init__(self, url: str, rate_per_s: float) -> None:
        self.rate_per_s = rate_per_s
        self.answers: list[Answer] = []
        self._address = urlsplit(url)
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._send) for _ in range(CLIENTS)]

    @contextmanager
    def running(self) -> Iterator["Clients"]:
        """Send while the context lasts."""
        # Evenly spaced, because each client keeps its place: a bunch would come back as a burst.
        for thread in self._threads:
            thread.start()
            self._stop.wait(1.0 / self.rate_per_s)
        try:
            yield self
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()

    def failed(self, since_s: float = 0.0) -> list[str]:
        """Return what went wrong with the requests sent since then."""
        return [one.error for one in list(self.answers) if one.error and one.sent_s >= since_s]

    def answering(self) -> set[int]:
        """Return the processes that answer now."""
        since_s = time.time() - _RECENT_S
        return {one.process for one in list(self.answers) if one.process and one.sent_s > since_s}

    def first_answer_s(self, since_s: float, *, without: int) -> float:
        """Return when the first request sent since then was answered, by another than `without`."""
        times_s = (
            one.done_s
            for one in list(self.answers)
            if one.sent_s >= since_s and one.process not in (None, without)
        )
        return min(times_s, default=math.inf)

    def _send(self) -> None:
        connection = http.client.HTTPConnection(
            self._address.hostname or "", self._address.port, timeout=10
        )
        while not self._stop.is_set():
            tensor = {"name": "input", "datatype": "FP32", "shape": [1, 1]}
            body = json.dumps({"inputs": [{**tensor, "data": [random.random()]}]})
            sent_s, process, error = time.time(), None, ""
            try:
                connection.request("POST", "/v2/models/googlenet/infer", body)
                answer = connection.getresponse()
                content = answer.read()
                if answer.status == 200:
                    process = int(json.loads(content)["outputs"][0]["data"][0])
                else:
                    error = f"{answer.status} {content[:80].decode(errors='replace')}"
            except (OSError, http.client.HTTPException) as failure:
                error = repr(failure)
                connection.close()
            self.answers.append(Answer(sent_s, time.time(), process, error))
            self._stop.wait(max(0.0, sent_s + CLIENTS / self.rate_per_s - time.time()))
        connection.close()


def wait_for(condition: Callable[[], object], what: str, timeout_s: float = _TIMEOUT_S) -> None:
    """Wait until a condition holds.

    Raises
    ------
    SystemExit
        It does not hold in time.
    """
    until_s = time.monotonic() + timeout_s
    while time.monotonic() < until_s:
        with suppress(OSError, ValueError, KeyError):
            if condition():
                return
        time.sleep(0.1)
    raise SystemExit(f"{what}: not within {timeout_s:g} s")


@dataclass
class Measured:
    """A service under load, and what is measured of it.

    Attributes
    ----------
    url, dashboard : str
    clients : Clients
    """

    url: str
    dashboard: str
    clients: Clients
    _killed: set[int] = field(default_factory=set)

    def processes(self) -> set[int]:
        """Return the processes of the replicas that run, standbys included."""
        return set(running_replicas(self.dashboard).values()) - self._killed

    def decided_s(self, replicas: int, since_s: float) -> float:
        """Return when so many replicas were decided on, at the first time since then."""
        decisions = get_json(f"{self.url}/sojourn/autoscaler")["decisions"]
        times_s = (one["time_s"] for one in decisions if one["replicas"] == replicas)
        return next((time_s for time_s in times_s if time_s >= since_s), math.inf)

    def wait_for_standby(self) -> int:
        """Return the process that serves, once another one stands by, for a while already."""
        # A replica that has just started serves until it knows its part.
        wait_for(lambda: len(self.processes()) == 2, "two replicas run")
        since_s = math.inf

        def one_stands_by() -> bool:
            nonlocal since_s
            newest = get_json(f"{self.url}/sojourn/autoscaler")["newest"]
            decided = newest is not None and newest["standbys"] == 1
            if decided and len(self.clients.answering()) == 1:
                since_s = min(since_s, time.monotonic())
            else:
                since_s = math.inf
            return time.monotonic() - since_s > _STEADY_S

        wait_for(one_stands_by, "one replica serves and one stands by")
        (serving,) = self.clients.answering()
        return serving

    def promotion(self, serving: int) -> dict[str, float]:
        """Raise the load; return how long the standby takes to serve, from the order."""
        begun_s = time.time()
        self.clients.rate_per_s = HIGH_PER_S
        ordered_s = math.inf

        def is_ordered() -> bool:
            # Replicas read the log once a second, each at its own time: the next may not know it.
            nonlocal ordered_s
            ordered_s = self.decided_s(2, begun_s)
            return ordered_s < math.inf

        wait_for(is_ordered, "the order is in the log")
        return {
            "served_after_s": self._first_answer_s(ordered_s, serving) - ordered_s,
            "failed": float(len(self.clients.failed(begun_s))),
        }

    def death(self, serving: int, recovered_s: float = 3.0) -> dict[str, float]:
        """Kill the process that serves; return for how long nobody answers what is sent then."""
        killed_s = time.time()
        os.kill(serving, signal.SIGKILL)
        self._killed.add(serving)
        first_s = self._first_answer_s(killed_s, serving)
        time.sleep(recovered_s)
        return {
            "served_after_s": first_s - killed_s,
            "failed": float(len(self.clients.failed(killed_s - 1.0))),
        }

    def _first_answer_s(self, since_s: float, without: int) -> float:
        wait_for(
            lambda: self.clients.first_answer_s(since_s, without=without) < math.inf,
            "another replica answers",
        )
        return self.clients.first_answer_s(since_s, without=without)


@click.command(help=__doc__.splitlines()[0])
@json_option
def main(as_json: bool) -> None:
    """Measure a promotion and two deaths, and print them."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "standbys.yaml"
        document = standby_document(1)
        config.write_text(yaml.safe_dump(document))
        with running_service(config, PORT) as summary:
            report = _measure(summary, document)
    if as_json:
        print_json(report)
        return
    print_table(
        ("event", *report["promotion"]), [[name, *row.values()] for name, row in report.items()]
    )


def _measure(summary: dict[str, Any], document: dict[str, Any]) -> dict[str, dict[str, float]]:
    with Clients(summary["url"], LOW_PER_S).running() as clients:
        measured = Measured(summary["url"], summary["dashboard"], clients)
        with_one = measured.death(measured.wait_for_standby())
        say(f"death with a standby: {with_one}")
        promotion = measured.promotion(measured.wait_for_standby())
        say(f"promotion: {promotion}")
        clients.rate_per_s = LOW_PER_S
        without = deepcopy(document)
        (deployment,) = without["applications"][0]["deployments"]
        deployment["user_config"]["autoscaler"]["standbys"] = 0
        deployment["autoscaling_config"]["max_replicas"] = 1
        deploy(summary["dashboard"], without)
        wait_for(lambda: len(measured.processes()) == 1, "no replica stands by")
        (serving,) = measured.processes()
        wait_for(lambda: clients.answering() == {serving}, "one replica serves")
        alone = measured.death(serving)
    return {
        "death_with_a_standby": with_one,
        "promotion": promotion,
        "death_without": alone,
    }


if __name__ == "__main__":
    main()
