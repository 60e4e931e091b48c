"""Compare what replicas predict of themselves with what clients see, where that is hard.

    python -m benchmarks.live.bad_cases [--quick] [--json] [--case NAME]

The cases: a model that keeps the interpreter's lock for 30 ms a batch; one that takes 5 µs; bodies
of 600 KB, whose parsing is the bottleneck; two replicas on two cores beside a process that burns
one; and half a core by the kernel's quota, which needs root. The replicas run without Ray, behind
Ray's HAProxy with our settings. Poisson arrivals come at a rate of the case's own. The percentiles
are those from a request's first byte until its answer is in the client's socket.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import click
import httpx
import numpy as np

from benchmarks.arguments import json_option, quick_option
from benchmarks.live.bad_models import LARGE_VALUES
from benchmarks.live.bare_replicas import bare_replicas
from benchmarks.peers.light_loop import light_open_loop
from loadtests.schedule import Step, poisson_schedule
from sojourn.output import print_json, say

PERCENTILES = (50, 95, 99)
WARM_UP_S = 10.0


@dataclass(frozen=True)
class Case:
    """A model and how it is run.

    Attributes
    ----------
    model : str
        Of `benchmarks.live.bad_models`.
    rate_per_s, response_time_ms : float
    values : int
        Numbers of a row.
    replicas : int
    cores : float
        Of each replica, by a quota; infinite without one.
    burns : bool
        Whether a process burns a core besides.
    """

    model: str
    rate_per_s: float
    response_time_ms: float = 100.0
    values: int = 1
    replicas: int = 1
    cores: float = np.inf
    burns: bool = False


CASES = {
    "holds the lock": Case("HoldsLock", 150.0, 300.0),
    "5 µs": Case("Instant", 2000.0),
    "600 KB": Case("Large", 60.0, 300.0, values=LARGE_VALUES),
    "600 KB, 200/s": Case("Large", 200.0, 300.0, values=LARGE_VALUES),
    "a core burns": Case("Instant", 1500.0, replicas=2, burns=True),
    "half a core": Case("Instant", 1500.0, cores=0.5),
}


@dataclass(frozen=True)
class Requests:
    """Requests of one row, as `light_open_loop` takes them."""

    path: str
    bodies: list[bytes]

    def is_right(self, number: int, answer: bytes) -> bool:
        """Return whether an answer has the number of its request."""
        return bool(json.loads(answer)["outputs"][0]["data"] == [float(number)])


def requests_of(case: Case) -> Requests:
    """Return different requests to the model of a case."""
    rest = np.random.default_rng(1).random(case.values - 1).round(7).tolist()
    bodies = []
    for number in range(4):
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, case.values]}
        bodies.append(json.dumps({"inputs": [{**tensor, "data": [number, *rest]}]}).encode())
    return Requests(f"/v2/models/{case.model}/infer", bodies)


@contextmanager
def burning(*, burns: bool) -> Iterator[None]:
    """Burn a core while the context lasts, or do not."""
    with ExitStack() as stack:
        if burns:
            command = [sys.executable, "-c", "while True: pass"]
            burner = stack.enter_context(subprocess.Popen(command))
            stack.callback(burner.kill)
        yield


def said_by(urls: list[str]) -> list[dict[str, Any]]:
    """Return what each replica says of itself."""
    return [httpx.get(url, timeout=30).json() for url in urls]


def measure(name: str, run_s: float) -> dict[str, Any]:
    """Run a case, and compare."""
    case = CASES[name]
    requests = requests_of(case)
    options = ("--response-time-ms", str(case.response_time_ms))
    model = (case.model, f"benchmarks.live.bad_models:{case.model}", *options)
    with (
        bare_replicas(case.replicas, *model, cores=case.cores) as running,
        burning(burns=case.burns),
    ):
        urls = running.policy_urls

        steps = [Step(WARM_UP_S + run_s, case.rate_per_s)]
        arrivals_s = poisson_schedule(steps, seed=1).arrivals_s
        said = before = said_by(urls)
        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(light_open_loop, requests, arrivals_s, running.port)  # type: ignore[arg-type]
            while not sending.done():
                time.sleep(1.0)
                now = said_by(urls)
                if sum(one["arrival_rate_per_s"] for one in now) > 0.8 * case.rate_per_s:
                    said = now
            run = sending.result()
        after = said_by(urls)
    counted = {
        key: sum(one["rows"][key] for one in after) - sum(one["rows"][key] for one in before)
        for key in ("completed", "late", "expired")
    }
    answered = run.answered
    times_ms = run.service_ms[answered & (arrivals_s > WARM_UP_S)]
    measured = np.percentile(times_ms, PERCENTILES).tolist() if times_ms.size else []
    too_late = run.outcome == 504
    judged = int(answered.sum() + too_late.sum())
    late = int((run.service_ms[answered] > case.response_time_ms).sum() + too_late.sum())
    first = said[0]
    return {
        "case": name,
        "rate_per_s": case.rate_per_s,
        "sla_rate_per_s": [one["sla_rate_per_s"] for one in said],
        "predicted_ms": first["predicted_for_clients_ms"] or first["predicted_ms"],
        "measured_ms": dict(zip(map(str, PERCENTILES), measured, strict=False)),
        "late_share": late / max(1, judged),
        "replica_late_share": counted["late"] / max(1, counted["completed"] + counted["expired"]),
        "refused_share": float(np.isin(run.outcome, (429, 503)).mean()),
        "other_share": float((~answered & ~np.isin(run.outcome, (429, 503, 504))).mean()),
        "bottleneck": first["bottleneck"],
        "prediction_holds": first["prediction_holds"],
        "front": first["front"],
    }


@click.command()
@quick_option("Load each case for 10 s instead of 40 s, after a warm-up.")
@json_option
@click.option("--case", type=click.Choice(list(CASES)), help="Only this case.")
def main(quick: bool, as_json: bool, case: str | None) -> None:
    """Compare predictions with measurements where that is hard."""
    rows = []
    for name in CASES if case is None else (case,):
        say(f"bad_cases: {name}")
        rows.append(measure(name, 10.0 if quick else 40.0))
        say(json.dumps({key: value for key, value in rows[-1].items() if key != "front"}))
    if as_json:
        print_json({"rows": rows})
        return
    print(f"{'case':>15}{'rate/s':>8}", end="")
    print("".join(f"{f'p{p} ms':>16}" for p in PERCENTILES), end="")
    print(f"{'late: clients':>15}{'replica':>9}{'refused':>9}{'lost':>7}  bottleneck")
    for row in rows:
        print(f"{row['case']:>15}{row['rate_per_s']:8.0f}", end="")
        for percentile in map(str, PERCENTILES):
            pair = (row["predicted_ms"].get(percentile), row["measured_ms"].get(percentile))
            print(f"{' / '.join('-' if ms is None else f'{ms:.1f}' for ms in pair):>16}", end="")
        print(f"{row['late_share']:15.1%}{row['replica_late_share']:9.1%}", end="")
        print(f"{row['refused_share']:9.1%}{row['other_share']:7.1%}", end="")
        print(f"  {row['bottleneck']}{'' if row['prediction_holds'] else ': it does not hold'}")
    print("percentiles: predicted by the replica / measured")


if __name__ == "__main__":
    main()
