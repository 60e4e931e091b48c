"""Serve a load step with real replicas, 1 → 2 → 1, one of which is killed on the way.

    python -m benchmarks.live.load_step [--json] [--plot docs/images/load_step.png]

`sojourn serve` runs configs/emulated-p4.yaml. Locust sends load that needs one replica, then two,
then one again. In the middle a replica gets SIGKILL. Takes about four minutes.
"""

import csv
import os
import signal
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
from matplotlib.figure import Figure

from benchmarks.arguments import json_option, plot_option, print_result
from benchmarks.local_service import (
    LocalService,
    ReplicaWatcher,
    emulated_p4_document,
    load_test,
    running_replicas,
    running_service,
)
from deployments.local.urls import get_json

PORT = 8124
LOW_PER_S, HIGH_PER_S = 40, 100
STEPS_S = (30, 80, 60)
KILL_AT_S = 80.0
WATCH_EVERY_S = 0.25

#: Seconds since the first request, and how many replicas ran then.
Timeline = list[tuple[float, int]]


def kill_a_replica(service: LocalService) -> tuple[float, float]:
    """Kill one of two replicas `KILL_AT_S` after the first request."""
    while not get_json(f"{service.url}/sojourn/policy")["rows"]["offered"]:
        time.sleep(0.1)
    first_s = time.monotonic()
    time.sleep(KILL_AT_S)
    while len(replicas := running_replicas(service.dashboard)) < 2:
        time.sleep(0.1)
    os.kill(next(iter(replicas.values())), signal.SIGKILL)
    return first_s, time.monotonic()


def send_step(url: str, out: str) -> tuple[dict[str, Any], list[dict[str, float]]]:
    """Send the load step; return the load test's report and its figures for each second."""
    rates = (LOW_PER_S, HIGH_PER_S, LOW_PER_S)
    shape = ",".join(f"{s}s:{rate}" for s, rate in zip(STEPS_S, rates, strict=True))
    report = load_test(url, "--model", "googlenet", "--shape", shape, "--out", out)
    with (Path(out) / "seconds.csv").open() as file:
        seconds = [
            {name: float(value or "nan") for name, value in row.items()}
            for row in csv.DictReader(file)
        ]
    return report, seconds


def draw(
    path: Path,
    seconds: list[dict[str, float]],
    timeline: Timeline,
    killed_s: float,
    sla_ms: float,
) -> None:
    """Draw arrivals, replicas and the 99th percentile, second by second."""
    figure = Figure(figsize=(9, 5), layout="constrained", dpi=120)
    load, replicas, response = figure.subplots(3, 1, sharex=True, height_ratios=(2, 1.2, 2))
    time_s = [row["second"] + 0.5 for row in seconds]
    load.fill_between(time_s, [row["sent"] for row in seconds], step="mid", color="#56B4E9")
    load.set_ylabel("requests/s")
    load.set_ylim(bottom=0)
    replicas.step(*zip(*timeline, strict=True), where="post", color="#222222", linewidth=2)
    replicas.set_ylabel("replicas")
    replicas.set_yticks([0, 1, 2, 3])
    replicas.set_ylim(0, 3.2)
    response.plot(time_s, [row["p99_ms"] for row in seconds], ".-", color="#E69F00", label="p99")
    response.axhline(sla_ms, color="#D55E00", linestyle="--", label=f"SLA: p99 ≤ {sla_ms:g} ms")
    response.set_ylabel("response time (ms)")
    response.set_ylim(bottom=0)
    response.set_xlabel("seconds")
    response.set_xlim(0, sum(STEPS_S))
    response.legend(loc="upper right", ncols=2)
    load.annotate("a replica is killed", (killed_s + 1, 5), color="#444444")
    for axes in (load, replicas, response):
        axes.axvline(killed_s, color="#999999", linestyle=":")
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def two_again_s(timeline: Timeline, killed_s: float) -> float | None:
    """Return how long after the kill Ray Serve, having noticed it, counts two replicas again."""
    noticed = False
    for at_s, count in timeline:
        if at_s > killed_s:
            noticed = noticed or count < 2
            if noticed and count == 2:
                return at_s - killed_s
    return None


@click.command()
@plot_option
@json_option
def main(plot_file: Path | None, as_json: bool) -> None:
    """Serve a load step with real replicas, one of which is killed on the way."""
    with (
        running_service(emulated_p4_document(), PORT) as service,
        tempfile.TemporaryDirectory() as out,
        ThreadPoolExecutor(1) as pool,
    ):
        watcher = ReplicaWatcher(service.dashboard, WATCH_EVERY_S)
        watcher.start()
        sending = pool.submit(send_step, service.url, out)
        first_s, killed_at_s = kill_a_replica(service)
        report, seconds = sending.result()
        while len(running_replicas(service.dashboard)) > 1:
            time.sleep(0.5)
        time.sleep(1)
        watcher.end()
    killed_s = killed_at_s - first_s
    timeline = [(at_s - first_s, count) for at_s, count in watcher.counts if at_s >= first_s]
    if plot_file is not None:
        draw(plot_file, seconds, timeline, killed_s, report["sla"]["response_time_ms"])
    counts = [count for _, count in timeline]
    level = report["sla"]["percentile"] / 100
    print_result(
        {
            "replicas": ", ".join(
                str(n) for n, before in zip(counts, [0, *counts], strict=False) if n != before
            ),
            "killed_s": killed_s,
            "two_again_s": two_again_s(timeline, killed_s),
            "requests": report["requests"],
            "wrong_answers": report["wrong_answers"],
            "lost": report["lost"],
            "failed": report["failed"],
            "seconds_outside_sla": sum(row["within_sla_share"] < level for row in seconds),
            "p99_ms_by_step": [step["response_percentiles_ms"]["99"] for step in report["by_step"]],
        },
        as_json,
    )


if __name__ == "__main__":
    main()
