"""Throughput at a fixed number of connections: `wrk` sends the load."""

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass

import click

from benchmarks.peers.protocols import Workload
from benchmarks.peers.servers import HOST, PORT

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

    Each connection sends its next request as soon as it has the answer to the last. What `failed`
    had another status than 200, timed out, or broke its connection.
    """

    connections: int
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    failed: int


def check_wrk() -> None:
    """Raise `ClickException` if `wrk` is not there."""
    if shutil.which("wrk") is None:
        raise click.ClickException("wrk is not installed (on Debian: apt-get install wrk)")


def closed_loop(workload: Workload, connections: int, duration_s: int) -> ClosedLoop:
    """Load the server with `connections` connections for `duration_s` seconds."""
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
    found = re.search(r"RESULT (\d+) (\d+) (\d+) (\d+) (\d+) (\d+)", output)
    assert found is not None, output
    requests, duration_us, status, broken, p50_us, p99_us = map(int, found.groups())
    return ClosedLoop(
        connections=connections,
        requests_per_s=1e6 * (requests - status) / duration_us,
        p50_ms=1e-3 * p50_us,
        p99_ms=1e-3 * p99_us,
        failed=status + broken,
    )
