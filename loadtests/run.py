"""Run Locust in its own process, because it patches the standard library."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from deployments.access.credentials import TOKEN_VARIABLE
from deployments.errors import StartError
from loadtests.records import Records
from loadtests.schedule import Schedule
from policy.errors import InvalidInputError

SETTINGS_VARIABLE = "SOJOURN_LOADTEST_SETTINGS"
STOP_TIMEOUT_S = 10


@dataclass(frozen=True)
class Settings:
    """Settings for Locust's process, passed through a JSON file.

    Attributes
    ----------
    model : str
        Name of the model at the service.
    connections : int
        Maximum number of requests in flight.
    timeout_s : float
        How long a client waits for an answer.
    duration_s : float
        Length of the schedule.
    seed : int
        Seed of the order of the requests.
    metrics_host, metrics_port : str, int or None
        Where Prometheus can scrape the test; without a port, nowhere.
    schedule, cases, records, examples : str
        File names: of the due times, the requests with their answers, the records, and a few wrong
        answers.
    """

    model: str
    connections: int
    timeout_s: float
    duration_s: float
    seed: int
    metrics_host: str
    metrics_port: int | None
    schedule: str = "schedule.npy"
    cases: str = "cases.jsonl"
    records: str = "records.npz"
    examples: str = "examples.json"

    def save(self, path: Path) -> None:
        """Write the settings as JSON."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> "Settings":
        """Read settings that `save` wrote."""
        return cls(**json.loads(path.read_text()))


def run(
    url: str,
    schedule: Schedule,
    settings: Settings,
    prepare_cases: Callable[[Path], object],
    token: str | None = None,
) -> tuple[Records, list[dict[str, str]]]:
    """Run a load test and wait for it to end.

    Parameters
    ----------
    url : str
        Root of the service.
    schedule : Schedule
        When requests are due.
    settings : Settings
        All other settings; the files are in a temporary folder.
    prepare_cases : callable
        Writes the requests to the path that it is given.
    token : str, optional
        Sent with every request.

    Returns
    -------
    records : Records
        One per request of the schedule.
    examples : list of dict
        A few wrong answers: the `request` and its `fault`, both shortened.

    Raises
    ------
    InvalidInputError
        Locust is not installed.
    StartError
        Locust ended without a result; the message has the last line of its log.
    """
    if importlib.util.find_spec("locust") is None:
        raise InvalidInputError("load tests need Locust: pip install 'sojourn[loadtest]'")
    with TemporaryDirectory(prefix="sojourn-loadtest-") as name:
        folder = Path(name)
        prepare_cases(folder / settings.cases)
        np.save(folder / settings.schedule, schedule.arrivals_s)
        settings.save(folder / "settings.json")
        log = folder / "locust.log"
        process = subprocess.Popen(
            [
                *(
                    sys.executable,
                    "-m",
                    "locust",
                    "-f",
                    str(Path(__file__).with_name("open_loop.py")),
                ),
                *("--headless", "--only-summary", "--json-file", "stats.json", "--host", url),
                *("--loglevel", "WARNING", "--logfile", str(log)),
            ],
            cwd=folder,
            env=_environment(folder, token),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            # Ctrl-C reaches only this process, which then stops Locust cleanly.
            start_new_session=True,
        )
        try:
            process.wait()
        finally:
            _stop(process)
        if process.returncode != 0 or not (folder / settings.records).exists():
            lines = log.read_text().splitlines() if log.exists() else []
            raise StartError(f"Locust ended early: {lines[-1] if lines else process.returncode}")
        examples: list[dict[str, str]] = json.loads((folder / settings.examples).read_text())
        return Records.load(folder / settings.records), examples


def _environment(folder: Path, token: str | None) -> dict[str, str]:
    # Ignore the user's own Locust settings, in the environment and in the home folder.
    kept = {key: value for key, value in os.environ.items() if not key.startswith("LOCUST_")}
    if token is not None:
        kept[TOKEN_VARIABLE] = token
    return kept | {"HOME": str(folder), SETTINGS_VARIABLE: str(folder / "settings.json")}


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
