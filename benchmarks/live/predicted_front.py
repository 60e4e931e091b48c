"""Compare what a replica predicts of itself with what its clients see, for fast models.

    python -m benchmarks.live.predicted_front [--quick] [--json] [--model NAME]

`sojourn serve` runs one replica of a tiny MLP, then of the digits model, under 99% within 20 ms.
Both take microseconds, so most of a request's time is its way to the model and back. Poisson
arrivals come at 0.3, 0.6 and 0.9 of the rate that the replica says it can take within the SLA
(`sla_rate_per_s` of ``/sojourn/policy``, after it has met some load). Compared are the percentiles
and the requests late. The service answers for the time from a request's first byte until its answer
is in the client's socket. How late the client sends, and how long it takes to read, is told apart:
it shares the machine with the service.
"""

import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import numpy as np
import yaml
from numpy.typing import NDArray

from benchmarks.arguments import json_option, quick_option
from benchmarks.live.local_service import get_json, running_service
from benchmarks.peers.light_loop import LightRun, light_open_loop
from benchmarks.peers.models import HOSTED
from benchmarks.peers.overload import REFUSALS
from benchmarks.peers.protocols import OpenInference, Workload, example_rows
from benchmarks.peers.servers import PORT
from benchmarks.peers.sojourn_config import PERCENTILE, document
from loadtests.schedule import Step, poisson_schedule
from sojourn.output import print_json, say

FloatArray = NDArray[np.float64]

MODELS = ("mlp", "digits")
LOADS = (0.3, 0.6, 0.9)
PERCENTILES = (50, 95, 99)
#: Load under which the replica learns what requests cost it before anything is measured.
WARM_UP_PER_S = 1000.0


def config_of(model: str) -> dict[str, Any]:
    """Return the config of one replica under the model's SLA, with everything else as it comes."""
    config = document(model)
    sla = {"response_time_ms": HOSTED[model].response_time_ms, "percentile": PERCENTILE}
    config["applications"][0]["deployments"][0]["user_config"] = {"sla": sla}
    return config


def _send(workload: Workload, rate_per_s: float, run_s: float) -> LightRun:
    arrivals_s = poisson_schedule([Step(run_s, rate_per_s)], seed=1).arrivals_s
    return light_open_loop(workload, arrivals_s, PORT)


def _percentiles(times_ms: FloatArray) -> dict[str, float]:
    if not times_ms.size:
        return {}
    values = np.percentile(times_ms, PERCENTILES).tolist()
    return dict(zip(map(str, PERCENTILES), values, strict=True))


def compare(
    workload: Workload, model: str, load: float, rate_per_s: float, run_s: float, url: str
) -> dict[str, Any]:
    """Load the service, and compare its prediction with what clients measure."""
    before = get_json(f"{url}/sojourn/policy")["rows"]
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(_send, workload, rate_per_s, run_s)
        # The prediction that counts is the last one made under the load.
        said = get_json(f"{url}/sojourn/policy")
        while not running.done():
            time.sleep(1.0)
            now = get_json(f"{url}/sojourn/policy")
            if now["arrival_rate_per_s"] > 0.9 * rate_per_s:
                said = now
        run = running.result()
    after = get_json(f"{url}/sojourn/policy")["rows"]
    answered, service_ms = run.answered, run.service_ms
    completed = max(1, after["completed"] - before["completed"])
    return {
        "model": model,
        "load": load,
        "rate_per_s": rate_per_s,
        "predicted_ms": said["predicted_for_clients_ms"] or said["predicted_ms"],
        "prediction_holds": said["prediction_holds"],
        "replica_measured_ms": said["measured_ms"],
        "measured_ms": _percentiles(service_ms[answered]),
        "from_due_ms": _percentiles(run.response_ms[answered]),
        "sent_late_ms": _percentiles(1e3 * (run.sent_s - run.due_s)[answered]),
        "read_late_ms": _percentiles(1e3 * (run.read_s - run.received_s)[answered]),
        "client_cpu_us": 1e6 * run.client_cpu_s / run.due_s.size,
        "late_share": float(np.mean(service_ms[answered] > HOSTED[model].response_time_ms)),
        "replica_late_share": (after["late"] - before["late"]) / completed,
        "refused_share": float(np.isin(run.outcome, REFUSALS).mean()),
        "bottleneck": said["bottleneck"],
        "front": said["front"],
        "balancer": said["balancer"],
    }


def measure(model: str, run_s: float) -> list[dict[str, Any]]:
    """Serve a model, and compare at each load."""
    workload = Workload(model, OpenInference(), example_rows(model, 32))
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config:
        yaml.safe_dump(config_of(model), config)
        config.flush()
        with running_service(Path(config.name), PORT) as summary:
            url = summary["url"]
            _send(workload, WARM_UP_PER_S, max(30.0, run_s))
            rows = []
            for load in LOADS:
                sla_rate_per_s = get_json(f"{url}/sojourn/policy")["sla_rate_per_s"]
                if not sla_rate_per_s:
                    raise click.ClickException(f"{model}: the replica says no rate keeps the SLA")
                say(f"predicted_front: {model}: {load:g} of {sla_rate_per_s:.0f}/s")
                rows.append(compare(workload, model, load, load * sla_rate_per_s, run_s, url))
    return rows


@click.command()
@quick_option("Load the service for 10 s at each load instead of 40 s.")
@json_option
@click.option("--model", type=click.Choice(MODELS), help="Only this model.")
def main(quick: bool, as_json: bool, model: str | None) -> None:
    """Compare what a replica predicts of itself with what its clients see, for fast models."""
    models = MODELS if model is None else (model,)
    rows = [row for name in models for row in measure(name, 10.0 if quick else 40.0)]
    if as_json:
        print_json({"rows": rows})
        return
    print(f"{'model':8}{'load':>6}{'rate/s':>8}", end="")
    print("".join(f"{f'p{p} ms':>18}" for p in PERCENTILES), end="")
    print(f"{'client: sends':>15}{'reads':>7}{'late: clients':>15}{'replica':>9}", end="")
    print(f"{'refused':>9}{'balancer':>10}  bottleneck")
    for row in rows:
        print(f"{row['model']:8}{row['load']:6.1f}{row['rate_per_s']:8.0f}", end="")
        for percentile in map(str, PERCENTILES):
            pair = (row["predicted_ms"].get(percentile), row["measured_ms"].get(percentile))
            print(f"{' / '.join(map(_in_ms, pair)):>18}", end="")
        late_ms = (row[key].get("99") for key in ("sent_late_ms", "read_late_ms"))
        print("{:>15}{:>7}".format(*map(_in_ms, late_ms)), end="")
        print(f"{row['late_share']:15.1%}{row['replica_late_share']:9.1%}", end="")
        print(f"{row['refused_share']:9.1%}{row['balancer']['utilization'] or 0:10.0%}", end="")
        print(f"  {row['bottleneck']}{'' if row['prediction_holds'] else ': it does not hold'}")
    print("percentiles: predicted by the replica / measured from the request's first byte until")
    print("the answer is in the client's socket; the client's own delays are 99th percentiles")


def _in_ms(time_ms: float | None) -> str:
    return "-" if time_ms is None else f"{time_ms:.2f}"


if __name__ == "__main__":
    main()
