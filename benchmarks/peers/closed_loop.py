"""Requests per second: `wrk` with a fixed number of connections, answers checked beside it."""

import re
import subprocess
import tempfile
import threading
from dataclasses import dataclass, field

import httpx

from benchmarks.peers.machine import others
from benchmarks.peers.protocols import Questions
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
    """What a number of connections carried.

    Attributes
    ----------
    connections : int
        Each sends its next request when it has the answer to the last.
    requests_per_s : float
        With status 200.
    p50_ms, p99_ms : float
        Of the response time.
    failed : int
        Other statuses, timeouts, and connections that broke.
    checked, wrong : int
        Answers compared with the model's own, and those among them that differ.
    others_cores : float
        Cores that processes which are not the benchmark's kept busy meanwhile.
    """

    connections: int
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    failed: int
    checked: int
    wrong: int
    others_cores: float


@dataclass(eq=False)
class Checker(threading.Thread):
    """A client of its own, which compares the answers it gets with the model's."""

    questions: Questions
    checked: int = 0
    wrong: int = 0
    _ended: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)

    def run(self) -> None:
        """Ask until `end`."""
        number = 0
        with httpx.Client(base_url=f"http://{HOST}:{PORT}", timeout=30, trust_env=False) as client:
            while not self._ended.wait(1 / CHECKS_PER_S):
                number = (number + 1) % len(self.questions.bodies)
                try:
                    answer = client.post(
                        self.questions.path,
                        content=self.questions.bodies[number],
                        headers={"Content-Type": "application/json"},
                    )
                except httpx.HTTPError:
                    continue
                if answer.status_code == 200:
                    self.checked += 1
                    self.wrong += not self.questions.right(number, answer.content)

    def end(self) -> None:
        """Stop asking."""
        self._ended.set()
        self.join()


def closed_loop(questions: Questions, connections: int, duration_s: int) -> ClosedLoop:
    """Load the server for a while."""
    checker = Checker(questions)
    checker.start()
    try:
        return _wrk(questions, connections, duration_s, checker)
    finally:
        if checker.is_alive():
            checker.end()


def _wrk(questions: Questions, connections: int, duration_s: int, checker: Checker) -> ClosedLoop:
    bodies = ",\n".join(f"[[{body.decode()}]]" for body in questions.bodies)
    # In Lua "]]" would end the text, as in a tensor of two dimensions; "]=]" does not.
    bodies = bodies.replace("[[{", "[=[{").replace("}]]", "}]=]")
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(_SCRIPT % bodies)
        script.flush()
        options = ["-t1", f"-c{connections}", f"-d{duration_s}s", "--timeout", "10s"]
        url = f"http://{HOST}:{PORT}{questions.path}"
        command = ["wrk", *options, "-s", script.name, url]
        with others() as shared:
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
        others_cores=shared.cores,
    )
