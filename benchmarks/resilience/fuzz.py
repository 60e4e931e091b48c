"""A fuzz of the HTTP interface over a socket, by its own OpenAPI document."""

import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.local_service import get_json
from benchmarks.resilience.run import Run

#: Cases for all operations together; only those with a body can be varied.
CASES = 10_000
_QUICK_S = 20
#: Refusals, which say that the service is busy.
_REFUSALS = (503, 504)
_MOST_TOLD = 5


def fuzz(run: Run) -> None:
    """Send 10,000 valid and invalid requests that schemathesis makes of the OpenAPI document.

    Making them takes longer than answering them: a quick run sends what it can in 20 s.
    """
    target = run.service.target
    url = f"http://{target.host}:{target.port}/sojourn/openapi.json"
    paths = get_json(url)["paths"].values()
    varied = sum("requestBody" in operation for path in paths for operation in path.values())
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "requests.har"
        command = ["schemathesis", "run", url, "--phases", "fuzzing", "--no-shrink"]
        command += ["--checks", "not_a_server_error", "--continue-on-failure", "--seed", "1"]
        command += ["--max-examples", str(-(-CASES // varied))]
        command += ["--report-har-path", str(report)]
        if run.quick:
            command += ["--max-time", str(_QUICK_S)]
        program = Path(sys.executable).with_name(command[0])
        run.begin()
        subprocess.run([program, *command[1:]], cwd=folder, stdout=subprocess.DEVNULL)
        if not report.exists():
            raise SystemExit("schemathesis did not write its report")
        run.notes += summary(json.loads(report.read_text())["log"]["entries"])


def summary(entries: list[dict[str, Any]]) -> list[str]:
    """Return how often each status came, and the first requests that the service failed on.

    Parameters
    ----------
    entries : list of dict
        Of a HAR file (HTTP archive).
    """
    statuses = Counter(entry["response"]["status"] for entry in entries)
    answered = ", ".join(f"{number:,} × {status}" for status, number in sorted(statuses.items()))
    failed = [
        f"{entry['request']['method']} {entry['request']['url']}: {status}"
        for entry in entries
        if (status := entry["response"]["status"]) >= 500 and status not in _REFUSALS
    ]
    return [f"{len(entries):,} cases were answered {answered}", *failed[:_MOST_TOLD]]
