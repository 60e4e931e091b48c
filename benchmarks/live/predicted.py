"""Is the model true? Predicted and measured percentiles of a live service, side by side.

Serves an emulated Tesla P4 (configs/emulated-p4.yaml, one replica) with `sojourn serve`, sends it
Poisson arrivals at loads of 0.2, 0.5 and 0.8, and sets what Locust measured beside what
`policy.response_time.evaluation` says of the policy that was in force::

    python -m benchmarks.live.predicted [--quick] [--json] [--plot docs/images/predicted.png]

Takes about five minutes.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.live.load_step import CONFIG, ROOT, service
from policy.batching_policy import BatchingPolicy
from policy.profile import Profile
from policy.response_time.evaluation import evaluate

LOADS = (0.2, 0.5, 0.8)
PERCENTILES = (50, 90, 95, 99)


def one_replica() -> dict[str, Any]:
    """Give the config with one replica, which refuses nobody and weighs latency against power."""
    document: dict[str, Any] = yaml.safe_load(CONFIG.read_text())
    (deployment,) = document["applications"][0]["deployments"]
    deployment["autoscaling_config"]["max_replicas"] = 1
    # More than ever wait at these loads: the prediction is of a room without bounds.
    deployment["user_config"]["limits"] = {"waiting_room": 4096}
    deployment["user_config"]["policy"] = {"objective": "weights", "energy_weight": 20}
    return document


def load(url: str, rate_per_s: float, duration_s: int) -> dict[str, Any]:
    """Run `sojourn loadtest` and give its report."""
    command = [sys.executable, "-m", "sojourn.cli", "loadtest", "--url", url, "--json"]
    options = ["--model", "googlenet", "--rate", f"{rate_per_s:g}"]
    output = subprocess.run(
        [*command, *options, "--duration-s", str(duration_s)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    report: dict[str, Any] = json.loads(output)
    return report


def compare(url: str, intensity: float, duration_s: int) -> dict[str, Any]:
    """Load the service at `intensity`, and predict what should have come of it."""
    with urllib.request.urlopen(f"{url}/sojourn/policy", timeout=5) as answer:
        profile = Profile.from_dict(json.load(answer)["profile"])
    rate_per_s = intensity * profile.capacity_per_s
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(load, url, rate_per_s, duration_s)
        # In force is what the replica does under the load, not after it.
        time.sleep(0.8 * duration_s)
        with urllib.request.urlopen(f"{url}/sojourn/policy", timeout=5) as answer:
            force = json.load(answer)
        report = loading.result()
    policy = BatchingPolicy(tuple(force["actions"]), force["longest_wait_ms"])
    predicted = evaluate(profile, policy, rate_per_s)
    measured = report["response_percentiles_ms"]
    return {
        "load": intensity,
        "rate_per_s": rate_per_s,
        "requests": report["requests"],
        "control_limit": policy.control_limit,
        "max_wait_ms": policy.max_wait_ms,
        "predicted_ms": {str(p): predicted.response_percentile_ms(p) for p in PERCENTILES},
        "measured_ms": {str(p): measured[str(p)] for p in PERCENTILES},
    }


def draw(path: Path, rows: list[dict[str, Any]]) -> None:
    """Draw predicted and measured percentiles, a panel per load."""
    figure = Figure(figsize=(9, 3.4), layout="constrained", dpi=120)
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(rows), sharey=True)
    places = range(len(PERCENTILES))
    for axes, row in zip(panels, rows, strict=True):
        for shift, name, color in ((-0.2, "predicted", "#0072B2"), (0.2, "measured", "#E69F00")):
            heights = [row[f"{name}_ms"][str(p)] for p in PERCENTILES]
            axes.bar([x + shift for x in places], heights, 0.38, color=color, label=name)
        axes.set_title(f"load {row['load']:g} ({row['rate_per_s']:.0f} requests/s)", fontsize=10)
        axes.set_xticks(list(places), [f"p{p}" for p in PERCENTILES])
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("response time (ms)")
    panels[0].legend(frameon=False)
    figure.savefig(path)


def main() -> None:
    """Compare at every load and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="20 s for each load, not 90")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--plot", type=Path, help="draw to this PNG file")
    options = parser.parse_args()
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config:
        yaml.safe_dump(one_replica(), config)
        config.flush()
        with service(Path(config.name)) as summary:
            duration_s = 20 if options.quick else 90
            rows = [compare(summary["url"], intensity, duration_s) for intensity in LOADS]
    if options.plot:
        draw(options.plot, rows)
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    print(f"{'load':>5}{'':4}" + "".join(f"{f'p{p}':>10}" for p in PERCENTILES))
    for row in rows:
        for name in ("predicted", "measured"):
            values = "".join(f"{row[f'{name}_ms'][str(p)]:10.1f}" for p in PERCENTILES)
            print(f"{row['load']:5g} {name:10}{values} ms")


if __name__ == "__main__":
    main()
