"""Compare the percentiles that the model predicts with those of a live service.

    python -m benchmarks.live.predicted [--quick] [--json] [--plot docs/images/predicted.png]

`sojourn serve` runs an emulated Tesla P4 (configs/emulated-p4.yaml) with one replica, and Locust
sends it Poisson arrivals at loads of 0.2, 0.5 and 0.8. What Locust measured is compared with what
`policy.response_time.evaluation` predicts for the policy in force. Takes about five minutes.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
from matplotlib.figure import Figure

from benchmarks.arguments import json_option, plot_option, print_result, quick_option
from benchmarks.local_service import (
    emulated_p4_document,
    load_test,
    running_service,
)
from deployments.local.urls import get_json
from policy.batching_policy import BatchingPolicy
from policy.profile import Profile
from policy.response_time.evaluation import evaluate

PORT = 8124
LOADS = (0.2, 0.5, 0.8)
PERCENTILES = (50, 90, 95, 99)


def one_replica_config() -> dict[str, Any]:
    """Return the config for one replica that refuses nobody and minimizes a weighted cost."""
    document = emulated_p4_document()
    (deployment,) = document["applications"][0]["deployments"]
    deployment["autoscaling_config"]["max_replicas"] = 1
    # More than ever wait at these loads: the prediction is for an unbounded waiting room.
    deployment["user_config"]["limits"] = {"late": "serve"}
    deployment["user_config"]["policy"] = {"objective": "weights", "energy_weight": 20}
    return document


def compare(url: str, load: float, duration_s: int) -> dict[str, Any]:
    """Send load to the service, and predict the response times that should come of it."""
    profile = Profile.from_dict(get_json(f"{url}/sojourn/policy")["profile"])
    rate_per_s = load * profile.capacity_per_s
    options = ["--model", "googlenet", "--arrival-rate", f"{rate_per_s:g}"]
    options += ["--duration-s", str(duration_s)]
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(load_test, url, *options)
        # The policy that counts is the one in force under the load, not after it.
        time.sleep(0.8 * duration_s)
        in_force = get_json(f"{url}/sojourn/policy")
        report = running.result()
    policy = BatchingPolicy(tuple(in_force["actions"]), in_force["longest_wait_ms"])
    predicted = evaluate(profile, policy, rate_per_s)
    measured = report["response_percentiles_ms"]
    return {
        "load": load,
        "rate_per_s": rate_per_s,
        "requests": report["requests"],
        "control_limit": policy.control_limit,
        "max_wait_ms": policy.max_wait_ms,
        "predicted_ms": {str(p): predicted.response_percentile_ms(p) for p in PERCENTILES},
        "measured_ms": {str(p): measured[str(p)] for p in PERCENTILES},
    }


def draw(path: Path, rows: list[dict[str, Any]]) -> None:
    """Draw predicted and measured percentiles, one panel per load."""
    figure = Figure(figsize=(9, 3.4), layout="constrained", dpi=120)
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


@click.command()
@quick_option("Load the service for 20 s at each load instead of 90 s.")
@plot_option
@json_option
def main(quick: bool, plot_file: Path | None, as_json: bool) -> None:
    """Compare predicted percentiles with those of a live service."""
    duration_s = 20 if quick else 90
    with running_service(one_replica_config(), PORT) as service:
        rows = [compare(service.url, load, duration_s) for load in LOADS]
    if plot_file is not None:
        draw(plot_file, rows)
    print_result({"loads": rows}, as_json)


if __name__ == "__main__":
    main()
