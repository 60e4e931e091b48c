"""Compare what load generators measure of the same service at the same rates.

    python -m benchmarks.live.load_generators [--quick] [--json] [--only constant]

Two services, without Ray: an echo in which every request takes 5 ms, so that the right answer is
known, and Sojourn's app with an emulated device that takes 50 ms and more for a batch. Each gets
Poisson arrivals from `benchmarks.peers.light_loop`, which costs 10 to 30 µs of CPU per request and
goes before all other processes, so it is the reference; from MLPerf LoadGen's Server scenario; from
Triton's perf_analyzer, where it is installed; and from `sojourn loadtest`, that is Locust, with one
and with two workers. wrk keeps as many
connections busy as there are requests in flight at that rate by Little's law: a closed loop, which
waits for the service. Response times count from when a request was due, for wrk from when it was
sent.

A generator can be believed at a rate if its percentiles are within 10%, or 1 ms, of the
reference's. It shares the cores with the service, as it does where people try a service.
"""

import csv
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import click
import numpy as np

from benchmarks.arguments import json_option, quick_option
from benchmarks.inputs import ROOT
from benchmarks.live.local_service import load_test
from benchmarks.peers.environments import UnavailableError, python_of
from benchmarks.peers.light_loop import light_open_loop
from benchmarks.peers.machine import machine_use
from benchmarks.peers.protocols import OpenInference, Workload, example_rows
from benchmarks.peers.servers import HOST, PORT, Server, serving
from benchmarks.peers.sojourn_config import user_config
from loadtests.schedule import Step, poisson_schedule
from sojourn.output import print_json, say

MODEL = "emulated"
CONSTANT_MS = 5.0
REFERENCE = "light loop"
PERCENTILES = (50, 90, 99)
#: How far the percentiles of a generator that can be believed may be off: a share, and ms.
BELIEVED_SHARE, BELIEVED_MS = 0.1, 1.0

_WRK_SCRIPT = """
wrk.method = "POST"
wrk.body = [==[{body}]==]
wrk.headers["Content-Type"] = "application/json"
"""
_WRK_UNIT_MS = {"us": 1e-3, "ms": 1.0, "s": 1e3}


#: Windows that perf_analyzer measures at least, and calls stable if they differ by any percentage.
_WINDOWS, _ANY_PERCENT = 3, 999
#: Each of its threads waits for an answer: with fewer than wait at once, it is no open loop.
_THREADS = 64
_PERF_ANALYZER_COLUMNS = (
    "Inferences/Second",
    *("p50 latency", "p90 latency", "p99 latency"),
)


@dataclass(frozen=True)
class Service:
    """A service to measure, and the rates at which it is measured."""

    server: Server
    rates_per_s: tuple[int, ...]
    quick_rates_per_s: tuple[int, ...]


SERVICES = {
    "constant": Service(
        Server(
            *("constant", "benchmarks.peers.constant_server", OpenInference()),
            options=(str(CONSTANT_MS),),
        ),
        rates_per_s=(100, 200, 400, 800, 1600),
        quick_rates_per_s=(100, 800),
    ),
    "device": Service(
        Server(
            *("device", "benchmarks.peers.device_server", OpenInference()),
            options=("cpu", json.dumps(user_config(MODEL))),
        ),
        rates_per_s=(100, 200, 400),
        quick_rates_per_s=(200,),
    ),
}


@dataclass(frozen=True)
class Measured:
    """What a generator says of a service.

    Attributes
    ----------
    achieved_per_s : float
        Requests per second that it sent.
    p50_ms, p90_ms, p99_ms : float
        Percentiles of the response time.
    cpu_us : float
        CPU time that a request cost the generator, without its start.
    sent_late_ms : float or None
        99th percentile of how late it sent; None if it does not tell.
    """

    achieved_per_s: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    cpu_us: float
    sent_late_ms: float | None = None

    @property
    def percentiles_ms(self) -> tuple[float, float, float]:
        """The percentiles `PERCENTILES`."""
        return self.p50_ms, self.p90_ms, self.p99_ms

    def believed(self, reference: "Measured") -> bool:
        """Return whether the percentiles are close enough to the reference's."""
        pairs = zip(self.percentiles_ms, reference.percentiles_ms, strict=True)
        return all(abs(a - b) <= max(BELIEVED_SHARE * b, BELIEVED_MS) for a, b in pairs)


def by_light_loop(workload: Workload, rate_per_s: float, run_s: float) -> Measured:
    """Measure with the compiled open loop."""
    arrivals_s = poisson_schedule([Step(run_s, rate_per_s)], seed=1).arrivals_s
    run = light_open_loop(workload, arrivals_s, PORT)
    p50_ms, p90_ms, p99_ms = np.percentile(run.response_ms[run.answered], PERCENTILES).tolist()
    late_ms = np.percentile(1e3 * (run.sent_s - run.due_s)[run.answered], 99)
    achieved_per_s = np.isfinite(run.sent_s).sum() / run_s
    cpu_us = 1e6 * run.client_cpu_s / arrivals_s.size
    return Measured(float(achieved_per_s), p50_ms, p90_ms, p99_ms, cpu_us, float(late_ms))


def by_loadgen(workload: Workload, rate_per_s: float, run_s: float) -> Measured:
    """Measure with MLPerf LoadGen.

    Raises
    ------
    UnavailableError
        It cannot be installed, or it failed.
    """
    client = ROOT / "benchmarks" / "peers" / "loadgen_client.py"
    with tempfile.NamedTemporaryFile("wb") as bodies:
        bodies.write(b"\n".join(workload.bodies))
        bodies.flush()
        settings = (str(PORT), workload.path, bodies.name, str(rate_per_s), str(run_s))
        command = [python_of("loadgen"), str(client), *settings]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise UnavailableError(f"LoadGen failed: {ended.stderr.strip().splitlines()[-1:]}")
    return Measured(**json.loads(ended.stdout))


def by_locust(workers: int, workload: Workload, rate_per_s: float, run_s: float) -> Measured:
    """Measure with `sojourn loadtest`."""
    load = ("--rate", str(rate_per_s), "--duration-s", str(run_s), "--workers", str(workers))
    options = ("--model", MODEL, *load, "--sla", "150ms@99")
    report = load_test(f"http://{HOST}:{PORT}", *options, check=False)
    p50_ms, p90_ms, p99_ms = (report["response_percentiles_ms"][str(p)] for p in PERCENTILES)
    late_ms = report["generator_lag_ms"]["p99"]
    cpu_us = report["generator_cpu_us"]
    return Measured(report["achieved_rate_per_s"], p50_ms, p90_ms, p99_ms, cpu_us, late_ms)


def by_wrk(workload: Workload, connections: int, run_s: float) -> Measured:
    """Measure with wrk: a closed loop of `connections` clients that do not think.

    Raises
    ------
    UnavailableError
        wrk is not installed, or it failed.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(_WRK_SCRIPT.replace("{body}", workload.bodies[0].decode()))
        script.flush()
        load = ["-t1", f"-c{connections}", f"-d{round(run_s)}s", "--latency", "-s", script.name]
        command = ["wrk", *load, f"http://{HOST}:{PORT}{workload.path}"]
        before = os.times()
        try:
            output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        except (FileNotFoundError, subprocess.CalledProcessError) as error:
            raise UnavailableError(f"wrk failed: {error}") from None
        after = os.times()
    spent_s = after.children_user + after.children_system
    return parse_wrk(output, spent_s - before.children_user - before.children_system)


def parse_wrk(output: str, cpu_s: float) -> Measured:
    """Return what wrk prints with ``--latency``; `cpu_s` is its CPU time."""
    times = re.findall(r"^ +(50|90|99)% +([\d.]+)(us|ms|s)$", output, flags=re.MULTILINE)
    rate = re.search(r"^Requests/sec: +([\d.]+)$", output, flags=re.MULTILINE)
    count = re.search(r"^ +(\d+) requests in ", output, flags=re.MULTILINE)
    if rate is None or count is None or len(times) != len(PERCENTILES):
        raise UnavailableError(f"wrk's output is not understood: {output[:200]!r}")
    p50_ms, p90_ms, p99_ms = (float(value) * _WRK_UNIT_MS[unit] for _, value, unit in times)
    return Measured(float(rate[1]), p50_ms, p90_ms, p99_ms, 1e6 * cpu_s / int(count[1]))


def by_perf_analyzer(rate_per_s: float, run_s: float) -> Measured:
    """Measure with Triton's perf_analyzer: Poisson arrivals.

    Raises
    ------
    UnavailableError
        It is not installed, or it failed.
    """
    with tempfile.NamedTemporaryFile("r", suffix=".csv") as table:
        rate = ("--request-rate-range", f"{rate_per_s:g}", "--request-distribution", "poisson")
        window_ms = str(round(1e3 * run_s / _WINDOWS))
        windows = ("-p", window_ms, "-r", str(_WINDOWS), "-s", str(_ANY_PERCENT))
        tensors = ("--input-tensor-format", "json", "--output-tensor-format", "json")
        command = ["perf_analyzer", "-m", MODEL, "-u", f"{HOST}:{PORT}", "-f", table.name]
        before = os.times()
        try:
            subprocess.run(
                [*command, *rate, *windows, *tensors, "--max-threads", str(_THREADS)],
                capture_output=True,
                text=True,
                check=True,
            )
        except FileNotFoundError:
            raise UnavailableError("perf_analyzer is not installed (docs/load_tests.md)") from None
        except subprocess.CalledProcessError as error:
            last = (error.stderr or error.stdout).strip().splitlines()[-1:]
            raise UnavailableError(f"perf_analyzer failed: {last}") from None
        after = os.times()
        spent_s = after.children_user + after.children_system
        spent_s -= before.children_user + before.children_system
        return parse_perf_analyzer(table.read(), spent_s, run_s)


def parse_perf_analyzer(table: str, cpu_s: float, run_s: float) -> Measured:
    """Return what perf_analyzer writes with ``-f``; `cpu_s` is its CPU time.

    It does not tell how many requests it sent: as many as were answered per second, here.
    """
    try:
        (line,) = csv.DictReader(table.splitlines())
        per_s, p50_us, p90_us, p99_us = (float(line[name]) for name in _PERF_ANALYZER_COLUMNS)
    except (KeyError, ValueError):
        raise UnavailableError(
            f"perf_analyzer's output is not understood: {table[:200]!r}"
        ) from None
    cpu_us = 1e6 * cpu_s / (per_s * run_s)
    return Measured(per_s, p50_us / 1e3, p90_us / 1e3, p99_us / 1e3, cpu_us)


def measure(workload: Workload, rate_per_s: float, run_s: float) -> Iterator[tuple[str, Measured]]:
    """Measure the running service with each generator, the reference first."""
    reference = by_light_loop(workload, rate_per_s, run_s)
    yield REFERENCE, reference
    # By Little's law; for a constant service time the median is the mean.
    connections = max(1, round(rate_per_s * reference.p50_ms / 1e3))
    generators: dict[str, Callable[[], Measured]] = {
        "MLPerf LoadGen": lambda: by_loadgen(workload, rate_per_s, run_s),
        "perf_analyzer": lambda: by_perf_analyzer(rate_per_s, run_s),
        "Locust": lambda: by_locust(1, workload, rate_per_s, run_s),
        "Locust, 2 workers": lambda: by_locust(2, workload, rate_per_s, run_s),
        f"wrk, {connections} connections": lambda: by_wrk(workload, connections, run_s),
    }
    for name, generate in generators.items():
        try:
            yield name, generate()
        except UnavailableError as error:
            say(f"load_generators: {name}: {error}")


@click.command()
@quick_option("Fewer rates, 4 s at each instead of 10 s.")
@json_option
@click.option("--only", type=click.Choice(tuple(SERVICES)), help="Only this service.")
def main(quick: bool, as_json: bool, only: str | None) -> None:
    """Compare what load generators measure of the same service at the same rates."""
    run_s = 4.0 if quick else 10.0
    workload = Workload(MODEL, OpenInference(), example_rows(MODEL, 32))
    rows = []
    for name in SERVICES if only is None else (only,):
        service = SERVICES[name]
        rates = service.quick_rates_per_s if quick else service.rates_per_s
        with serving(service.server, MODEL, workload) as running:
            by_light_loop(workload, rates[0], 2.0)  # warm up
            for rate_per_s in rates:
                say(f"load_generators: {name}: {rate_per_s}/s")
                with machine_use(running.pid) as used:
                    found = dict(measure(workload, rate_per_s, run_s))
                rows += [
                    {
                        "service": name,
                        "rate_per_s": rate_per_s,
                        "generator": generator,
                        **asdict(measured),
                        "believed": measured.believed(found[REFERENCE]),
                        "others_cores": used.others_cores,
                    }
                    for generator, measured in found.items()
                ]
    if as_json:
        print_json({"cores": os.cpu_count(), "load_average": os.getloadavg(), "rows": rows})
        return
    others = float(np.mean([row["others_cores"] for row in rows]))
    print(f"{os.cpu_count()} cores, of which other processes kept {others:.2f} busy")
    print(f"{'service':10}{'rate/s':>7}  {'generator':22}{'achieved/s':>11}", end="")
    print("".join(f"{f'p{p} ms':>9}" for p in PERCENTILES), f"{'sends late ms':>14}", end="")
    print(f"{'CPU µs':>8}  believed")
    for row in rows:
        late_ms = row["sent_late_ms"]
        print(f"{row['service']:10}{row['rate_per_s']:7}  {row['generator']:22}", end="")
        print(f"{row['achieved_per_s']:11.1f}", end="")
        print("".join(f"{row[f'p{p}_ms']:9.1f}" for p in PERCENTILES), end="")
        print(f"{'-' if late_ms is None else f'{late_ms:.1f}':>15}{row['cpu_us']:8.0f}", end="")
        print(f"  {'yes' if row['believed'] else 'no'}")
    print("sends late: the 99th percentile of the time from when a request was due until it left")
    print("CPU: of the generator, for each request")


if __name__ == "__main__":
    main()
