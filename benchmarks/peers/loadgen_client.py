"""Send load with MLPerf LoadGen's Server scenario, from an environment of its own.

``python benchmarks/peers/loadgen_client.py PORT PATH BODIES RATE_PER_S RUN_S``, with the requests
in the file `BODIES`, one a line. LoadGen draws Poisson arrivals, calls `Client.issue` for each when
it is due, and counts its latency from then. Prints what it reports, as JSON. Imports nothing of
this repository.
"""

import json
import os
import re
import select
import socket
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import mlperf_loadgen as loadgen  # type: ignore[import-not-found]

PERCENTILES = ("50.00", "90.00", "99.00")


class Client:
    """Connections to the service, each with one request at a time.

    Parameters
    ----------
    port : int
    requests : list of bytes
        Whole HTTP requests, by the index of LoadGen's sample.
    """

    def __init__(self, port: int, requests: list[bytes]) -> None:
        self._port = port
        self._requests = requests
        self._idle: deque[socket.socket] = deque()
        self._sample_of: dict[int, int] = {}
        self._connection_of: dict[int, socket.socket] = {}
        self._received: dict[int, bytes] = {}
        self._epoll = select.epoll()
        threading.Thread(target=self._read_forever, daemon=True).start()

    def issue(self, samples: Sequence[Any]) -> None:
        """Send the requests that are due."""
        for sample in samples:
            connection = self._idle.popleft() if self._idle else self._connect()
            self._sample_of[connection.fileno()] = sample.id
            connection.sendall(self._requests[sample.index])

    def _connect(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self._port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection_of[connection.fileno()] = connection
        self._epoll.register(connection.fileno(), select.EPOLLIN)
        return connection

    def _read_forever(self) -> None:
        while True:
            for file, _ in self._epoll.poll():
                self._read(self._connection_of[file])

    def _read(self, connection: socket.socket) -> None:
        file = connection.fileno()
        received = connection.recv(65536)
        if not received:
            _fail("the service closed a connection")
        answer = self._received.pop(file, b"") + received
        head, end, body = answer.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: *(\d+)", head)
        if not end or length is None or len(body) < int(length[1]):
            self._received[file] = answer
            return
        if not head.startswith(b"HTTP/1.1 200"):
            # LoadGen knows no failed samples.
            _fail(f"the service answered {head[:60]!r}")
        response = loadgen.QuerySampleResponse(self._sample_of[file], 0, 0)
        self._idle.append(connection)
        loadgen.QuerySamplesComplete([response])


def _fail(what: str) -> NoReturn:
    """End the process, from whichever thread."""
    print(f"loadgen_client: {what}", file=sys.stderr, flush=True)
    os._exit(1)


def run(client: Client, samples: int, rate_per_s: float, run_s: float) -> dict[str, float]:
    """Run LoadGen's Server scenario, and return what its summary says."""
    settings = loadgen.TestSettings()
    settings.scenario = loadgen.TestScenario.Server
    settings.mode = loadgen.TestMode.PerformanceOnly
    settings.server_target_qps = rate_per_s
    settings.min_duration_ms = round(1e3 * run_s)
    settings.min_query_count = settings.max_query_count = round(rate_per_s * run_s)
    library = loadgen.ConstructQSL(samples, samples, lambda _: None, lambda _: None)
    system = loadgen.ConstructSUT(client.issue, lambda: None)
    with tempfile.TemporaryDirectory() as folder:
        logs = loadgen.LogSettings()
        logs.log_output.outdir = folder
        logs.log_output.copy_summary_to_stdout = False
        logs.enable_trace = False
        begun_cpu_s = time.process_time()
        loadgen.StartTestWithLogSettings(system, library, settings, logs)
        cpu_us = 1e6 * (time.process_time() - begun_cpu_s) / settings.max_query_count
        summary = (Path(folder) / "mlperf_log_summary.txt").read_text()
    found = {
        f"p{name.partition('.')[0]}_ms": 1e-6 * _number(f"{name} percentile latency (ns)", summary)
        for name in PERCENTILES
    }
    achieved_per_s = _number("Completed samples per second", summary)
    return {"achieved_per_s": achieved_per_s, **found, "cpu_us": cpu_us}


def _number(name: str, summary: str) -> float:
    match = re.search(rf"{re.escape(name)} *: *([\d.]+)", summary)
    if match is None:
        sys.exit(f"loadgen_client: no {name} in LoadGen's summary")
    return float(match[1])


def main() -> None:
    """Send the load, and print what LoadGen reports."""
    port, path, bodies, rate_per_s, run_s = sys.argv[1:]
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    requests = [
        head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body
        for body in Path(bodies).read_bytes().splitlines()
    ]
    found = run(Client(int(port), requests), len(requests), float(rate_per_s), float(run_s))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
