"""Throughput at a fixed number of connections: `wrk` loads, a second client checks answers."""

import re
import shutil
import subprocess
import tempfile
import threading
from dataclasses import dataclass, field

import click
import httpx

from benchmarks.peers.protocols import Workload
from benchmarks.peers.servers import HOST, PORT

CHECKS_PER_S = 20.0
_SCRIPT = """
local bodies = {%s}
local requests, next_request = {}, 0
init = function(args)
  wrk.headers["Content-Type"] = "application/json"
  for i, body in ipairs(bodies) do requests[i] = wrk.format("POST", nil, nil, body) end
end
request = function()
  next_request = next_request %% #requests + 1
  return requests[next_request]
end
done = function(summary, latency)
  local errors = summary.errors
  local broken = errors.connect + errors.read + errors.write + errors.timeout
  io.write(string.format("RESULT %%d %%d %%d %%d %%d %%d\\n", summary.requests, summary.duration,
    errors.status, broken, latency:percentile(50), latency:percentile(99)))
end
"""


@dataclass(frozen=True)
class ClosedLoop:
    """The result of one run.

    Attributes
    ----------
    connections : int
        Each sends its next request as soon as it has the answer to the last.
    requests_per_s : float
        Requests answered with status 200.
    p50_ms, p99_ms : float
        Percentiles of the response time.
    failed : int
        Other statuses, timeouts, and broken connections.
    checked, wrong : int
        Answers compared with the model's own, and those that differed.
    """

    connections: int
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    failed: int
    checked: int
    wrong: int


def check_wrk() -> None:
    """Check that `wrk` is there.

    Raises
    ------
    ClickException
        It is not.
    """
    if shutil.which("wrk") is None:
        raise click.ClickException("wrk is not installed (on Debian: apt-get install wrk)")


@dataclass(eq=False)
class Checker(threading.Thread):
    """A second client, which compares the answers it gets with the model's own."""

    workload: Workload
    checked: int = 0
    wrong: int = 0
    _ended: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)

    def run(self) -> None:
        """Send requests until `end`."""
        number = 0
        with httpx.Client(base_url=f"http://{HOST}:{PORT}", timeout=30, trust_env=False) as client:
            while not self._ended.wait(1 / CHECKS_PER_S):
                number = (number + 1) % len(self.workload.bodies)
                try:
                    answer = client.post(
                        self.workload.path,
                        content=self.workload.bodies[number],
                        headers={"Content-Type": "application/json"},
                    )
                except httpx.HTTPError:
                    continue
                if answer.status_code == 200:
                    self.checked += 1
                    self.wrong += not self.workload.is_right(number, answer.content)

    def end(self) -> None:
        """Stop sending."""
        self._ended.set()
        self.join()


def closed_loop(workload: Workload, connections: int, duration_s: int) -> ClosedLoop:
    """Load the server with `connections` connections for `duration_s` seconds."""
    checker = Checker(workload)
    checker.start()
    try:
        return _wrk(workload, connections, duration_s, checker)
    finally:
        if checker.is_alive():
            checker.end()


def _wrk(workload: Workload, connections: int, duration_s: int, checker: Checker) -> ClosedLoop:
    bodies = ",\n".join(f"[[{body.decode()}]]" for body in workload.bodies)
    # A tensor of two dimensions ends in "]]", which would close a Lua string in [[...]].
    bodies = bodies.replace("[[{", "[=[{").replace("}]]", "}]=]")
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(_SCRIPT % bodies)
        script.flush()
        options = ["-t1", f"-c{connections}", f"-d{duration_s}s", "--timeout", "10s"]
        url = f"http://{HOST}:{PORT}{workload.path}"
        command = ["wrk", *options, "-s", script.name, url]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    checker.end()
    found = re.search(r"RESULT (\d+) (\d+) (\d+) (\d+) (\d+) (\d+)", output)
    assert found is not None, output
    requests, duration_us, status, broken, p50_us, p99_us = map(int, found.groups())
    return ClosedLoop(
        connections=connections,
        requests_per_s=1e6 * (requests - status) / duration_us,
        p50_ms=1e-3 * p50_us,
        p99_ms=1e-3 * p99_us,
        failed=status + broken,
        checked=checker.checked,
        wrong=checker.wrong,
    )
