"""Compare what a replica predicts of itself with what its clients see, for fast models.

    python -m benchmarks.live.predicted_front [--quick] [--json]

`sojourn serve` runs one replica of a tiny MLP, then of the digits model, under 99% within 20 ms.
Both take microseconds, so most of a request's time is its way to the model and back. Poisson
arrivals come at 0.3 and 0.6 of the rate that the replica says it can take within the SLA
(`sla_rate_per_s` of ``/sojourn/policy``, after it has met some load). Clients count from when each
request was due. Compared are the percentiles, the requests late, and what the replica calls the
bottleneck. The client and HAProxy share the machine with the replica, and two cores cannot carry
more than that.
"""

import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import numpy as np
import yaml

from benchmarks.arguments import json_option, quick_option
from benchmarks.live.local_service import get_json, running_service
from benchmarks.peers.goodput import in_time
from benchmarks.peers.models import HOSTED
from benchmarks.peers.open_loop import Run, open_loop
from benchmarks.peers.overload import REFUSALS
from benchmarks.peers.protocols import OpenInference, Workload, example_rows
from benchmarks.peers.servers import PORT
from benchmarks.peers.sojourn_config import PERCENTILE, document
from loadtests.records import Outcome
from loadtests.schedule import Step, poisson_schedule
from sojourn.output import print_json, say

MODELS = ("mlp", "digits")
LOADS = (0.3, 0.6)
PERCENTILES = (50, 95, 99)
#: Load under which the replica learns what requests cost it before anything is measured.
WARM_UP_PER_S = 1000.0


def config_of(model: str) -> dict[str, Any]:
    """Return the config of one replica under the model's SLA, with everything else as it comes."""
    config = document(model)
    sla = {"response_time_ms": HOSTED[model].response_time_ms, "percentile": PERCENTILE}
    config["applications"][0]["deployments"][0]["user_config"] = {"sla": sla}
    return config


def _send(workload: Workload, rate_per_s: float, run_s: float) -> Run:
    arrivals_s = poisson_schedule([Step(run_s, rate_per_s)], seed=1).arrivals_s
    return open_loop(workload, arrivals_s)


def compare(
    workload: Workload, model: str, load: float, rate_per_s: float, run_s: float, url: str
) -> dict[str, Any]:
    """Load the service, and compare its prediction with what clients measure."""
    before = get_json(f"{url}/sojourn/policy")["rows"]
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(_send, workload, rate_per_s, run_s)
        # The prediction that counts is the one made under the load.
        time.sleep(0.9 * run_s)
        said = get_json(f"{url}/sojourn/policy")
        run = running.result()
    after = get_json(f"{url}/sojourn/policy")["rows"]
    outcome = run.records.outcome
    answered = outcome == Outcome.OK
    measured = np.percentile(run.records.response_ms[answered], PERCENTILES).tolist()
    good = in_time(run, HOSTED[model].response_time_ms)
    completed = max(1, after["completed"] - before["completed"])
    return {
        "model": model,
        "load": load,
        "rate_per_s": rate_per_s,
        "predicted_ms": said["predicted_ms"],
        "replica_measured_ms": said["measured_ms"],
        "measured_ms": dict(zip(map(str, PERCENTILES), measured, strict=True)),
        "late_share": float((answered & ~good).mean()),
        "replica_late_share": (after["late"] - before["late"]) / completed,
        "refused_share": float(np.isin(outcome, REFUSALS).mean()),
        "bottleneck": said.get("bottleneck"),
        "front": said.get("front"),
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
def main(quick: bool, as_json: bool) -> None:
    """Compare what a replica predicts of itself with what its clients see, for fast models."""
    rows = [row for model in MODELS for row in measure(model, 10.0 if quick else 40.0)]
    if as_json:
        print_json({"rows": rows})
        return
    print(f"{'model':8}{'load':>6}{'rate/s':>8}", end="")
    print("".join(f"{f'p{p} ms':>22}" for p in PERCENTILES), end="")
    print(f"{'late: clients':>15}{'replica':>9}{'refused':>9}  bottleneck")
    for row in rows:
        print(f"{row['model']:8}{row['load']:6.1f}{row['rate_per_s']:8.0f}", end="")
        for percentile in map(str, PERCENTILES):
            predicted = row["predicted_ms"].get(percentile)
            stated = "-" if predicted is None else f"{predicted:.2f}"
            print(f"{stated + ' / ' + format(row['measured_ms'][percentile], '.2f'):>22}", end="")
        print(f"{row['late_share']:15.1%}{row['replica_late_share']:9.1%}", end="")
        print(f"{row['refused_share']:9.1%}  {row['bottleneck']}")
    print("percentiles: predicted by the replica / measured by its clients")


if __name__ == "__main__":
    main()
