"""Run Locust in separate processes, because it patches the standard library."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from deployments.access.credentials import TOKEN_VARIABLE
from deployments.errors import StartError
from loadtests.records import Records
from loadtests.schedule import Schedule
from policy.errors import InvalidInputError

SETTINGS_VARIABLE = "SOJOURN_LOADTEST_SETTINGS"
WORKER_VARIABLE = "SOJOURN_LOADTEST_WORKER"
#: Files in the folder where Locust's processes run: what they read, and what each worker writes,
#: with a place for its number. The notes have a few failures, when the schedule began and the CPU
#: time spent.
SCHEDULE, CASES = "schedule.npy", "cases.jsonl"
RECORDS, NOTES = "records-{}.npz", "notes-{}.json"
STOP_TIMEOUT_S = 10
WATCH_EVERY_S = 0.2


@dataclass(frozen=True)
class Settings:
    """Settings for Locust's processes, passed through a JSON file.

    `connections` is the maximum number of requests in flight, at least one for each worker. One of
    `workers` is Locust alone; several also have a master.
    """

    model: str
    connections: int
    timeout_s: float
    duration_s: float
    seed: int
    workers: int = 1

    @property
    def connections_per_worker(self) -> int:
        return self.connections // self.workers

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> "Settings":
        return cls(**json.loads(path.read_text()))


@dataclass(frozen=True)
class Finished:
    """A finished test.

    `examples` have a failure of each kind, and a few wrong answers: the `kind`, as in the report,
    when it ended (`at_s`), the `request` and the `fault`, both shortened. The schedule began at
    `start_s` by ``time.perf_counter``, which is the same in all processes; `cpu_s` is the CPU time
    of all workers from then on.
    """

    records: Records
    examples: list[dict[str, Any]]
    start_s: float
    cpu_s: float


def run(
    url: str,
    schedule: Schedule,
    settings: Settings,
    prepare_cases: Callable[[Path], object],
    token: str | None = None,
) -> Finished:
    """Run a load test and wait for it to end; `prepare_cases` writes the requests to a path.

    `StartError`: Locust ended without a result; the message has the last line of its log.
    """
    if importlib.util.find_spec("locust") is None:
        raise InvalidInputError("load tests need Locust: pip install 'sojourn[loadtest]'")
    with TemporaryDirectory(prefix="sojourn-loadtest-") as name:
        folder = Path(name)
        prepare_cases(folder / CASES)
        np.save(folder / SCHEDULE, schedule.arrivals_s)
        settings.save(folder / "settings.json")
        environment = _environment(folder, token)
        processes = []
        try:
            for number, options in enumerate(_roles(settings.workers)):
                # The first one is the master, or Locust's only process.
                processes.append(_start(folder, number, (*options, "--host", url), environment))
            _wait(processes)
        finally:
            _stop(processes)
        parts = [folder / RECORDS.format(worker) for worker in range(settings.workers)]
        if any(one.returncode for one in processes) or not all(map(Path.exists, parts)):
            raise StartError(f"Locust ended early: {_last_log_line(folder)}")
        records = Records.interleaved([Records.load(part) for part in parts])
        notes = [
            json.loads((folder / NOTES.format(worker)).read_text())
            for worker in range(settings.workers)
        ]
        cpu_s = sum(worker["cpu_s"] for worker in notes)
        return Finished(records, _examples(notes), notes[0]["start_s"], cpu_s)


def _roles(workers: int) -> list[tuple[str, ...]]:
    """Return the options of each of Locust's processes; of several, the first is the master."""
    show = ("--headless", "--only-summary", "--json-file", "stats.json")
    if workers == 1:
        return [show]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    master = ("--master", "--master-bind-host", "127.0.0.1", "--master-bind-port", port)
    worker = ("--worker", "--master-host", "127.0.0.1", "--master-port", port)
    return [(*show, *master, "--expect-workers", str(workers)), *[worker] * workers]


def _start(
    folder: Path, number: int, options: Sequence[str], environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    locustfile = str(Path(__file__).with_name("open_loop.py"))
    log = str(folder / f"locust-{number}.log")
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "locust", "-f", locustfile, *options),
            *("--loglevel", "WARNING", "--logfile", log),
        ],
        cwd=folder,
        env=environment | {WORKER_VARIABLE: str(max(0, number - 1))},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        # Ctrl-C reaches only this process, which then stops Locust cleanly.
        start_new_session=True,
    )


def _wait(processes: list[subprocess.Popen[bytes]]) -> None:
    """Wait until all processes have succeeded or one has failed."""
    waiting = processes
    while waiting and not any(one.returncode for one in processes):
        with suppress(subprocess.TimeoutExpired):
            waiting[0].wait(WATCH_EVERY_S)
        waiting = [one for one in processes if one.poll() is None]


def _last_log_line(folder: Path) -> str:
    """Return the last line of the first log that has one, workers' logs first."""
    for log in sorted(folder.glob("locust-*.log"), reverse=True):
        if lines := log.read_text().splitlines():
            return lines[-1]
    return "it logged nothing"


def _examples(notes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the workers' earliest failures of each kind."""
    found = [example for worker in notes for example in worker["examples"]]
    kept: dict[str, list[dict[str, Any]]] = {}
    for example in sorted(found, key=lambda example: float(example["at_s"])):
        kept.setdefault(example["kind"], []).append(example)
    return [
        example for kind, examples in kept.items() for example in examples[: max_examples(kind)]
    ]


def max_examples(kind: str) -> int:
    """Return how many failures of a kind a test keeps; wrong answers need several examples."""
    return 3 if kind == "wrong" else 1


def _environment(folder: Path, token: str | None) -> dict[str, str]:
    # Ignore the user's own Locust settings, in the environment and in the home folder.
    kept = {key: value for key, value in os.environ.items() if not key.startswith("LOCUST_")}
    if token is not None:
        kept[TOKEN_VARIABLE] = token
    return kept | {"HOME": str(folder), SETTINGS_VARIABLE: str(folder / "settings.json")}


def _stop(processes: list[subprocess.Popen[bytes]]) -> None:
    running = [process for process in processes if process.poll() is None]
    for process in running:
        process.terminate()
    for process in running:
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
