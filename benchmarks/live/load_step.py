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
from pathlib import Path
from typing import Any

import click
from matplotlib.figure import Figure

from benchmarks.arguments import json_option, plot_option
from benchmarks.inputs import EMULATED_P4_CONFIG
from benchmarks.live.local_service import (
    ReplicaWatcher,
    get_json,
    load_test,
    running_replicas,
    running_service,
)
from sojourn.output import print_json

PORT = 8124
LOW_PER_S, HIGH_PER_S = 40, 100
STEPS_S = (30, 80, 60)
KILL_AT_S = 80.0
WATCH_EVERY_S = 0.25
#: Longer lists are left to --json.
MAX_ENTRIES_SHOWN = 9


def offered_rows(url: str) -> int:
    """Return how many rows the replica has been offered so far."""
    return int(get_json(f"{url}/sojourn/policy")["rows"]["offered"])


class KillingWatcher(ReplicaWatcher):
    """Counts the running replicas from the first request on, and kills one at `KILL_AT_S`.

    Attributes
    ----------
    killed_s : float or None
        When a replica was killed, in seconds since the first request.
    """

    def __init__(self, url: str, dashboard: str) -> None:
        super().__init__(dashboard, WATCH_EVERY_S)
        self.killed_s: float | None = None
        self._url = url
        self._started_s = 0.0

    def run(self) -> None:
        """Wait for the first request, then count until `end`."""
        while not offered_rows(self._url) and not self.ended.wait(0.1):
            pass
        self._started_s = time.monotonic()
        super().run()

    def observe(self, now_s: float, replicas: dict[str, int]) -> None:
        """Kill a replica when it is time and another one can take over."""
        since_start_s = now_s - self._started_s
        if self.killed_s is None and since_start_s >= KILL_AT_S and len(replicas) > 1:
            os.kill(next(iter(replicas.values())), signal.SIGKILL)
            self.killed_s = since_start_s

    @property
    def timeline(self) -> list[tuple[float, int]]:
        """Seconds since the first request, and the replicas that ran then."""
        return [(at_s - self._started_s, count) for at_s, count in self.counts]


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
    path: Path, seconds: list[dict[str, float]], watcher: KillingWatcher, sla_ms: float
) -> None:
    """Draw arrivals, replicas and the 99th percentile, second by second."""
    figure = Figure(figsize=(9, 5), layout="constrained", dpi=120)
    load, replicas, response = figure.subplots(3, 1, sharex=True, height_ratios=(2, 1.2, 2))
    time_s = [row["second"] + 0.5 for row in seconds]
    load.fill_between(time_s, [row["sent"] for row in seconds], step="mid", color="#56B4E9")
    load.set_ylabel("requests/s")
    load.set_ylim(bottom=0)
    replicas.step(*zip(*watcher.timeline, strict=True), where="post", color="#222222", linewidth=2)
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
    if watcher.killed_s is not None:
        for axes in (load, replicas, response):
            axes.axvline(watcher.killed_s, color="#999999", linestyle=":")
        load.annotate("a replica is killed", (watcher.killed_s + 1, 5), color="#444444")
    for axes in (load, replicas, response):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def two_again_s(watcher: KillingWatcher) -> float | None:
    """Return how long after the kill Ray Serve, having noticed it, counts two replicas again."""
    assert watcher.killed_s is not None
    noticed = False
    for at_s, count in watcher.timeline:
        if at_s > watcher.killed_s:
            noticed = noticed or count < 2
            if noticed and count == 2:
                return at_s - watcher.killed_s
    return None


@click.command()
@plot_option
@json_option
def main(plot_file: Path | None, as_json: bool) -> None:
    """Serve a load step with real replicas, one of which is killed on the way."""
    with (
        running_service(EMULATED_P4_CONFIG, PORT) as summary,
        tempfile.TemporaryDirectory() as out,
    ):
        watcher = KillingWatcher(summary["url"], summary["dashboard"])
        watcher.start()
        report, seconds = send_step(summary["url"], out)
        while len(running_replicas(summary["dashboard"])) > 1:
            time.sleep(0.5)
        time.sleep(1)
        watcher.end()
    assert watcher.killed_s is not None
    if plot_file is not None:
        draw(plot_file, seconds, watcher, report["sla"]["response_time_ms"])
    counts = [count for _, count in watcher.counts]
    around_kill = range(int(watcher.killed_s) - 2, int(watcher.killed_s) + 11)
    result = {
        "replicas": [n for n, before in zip(counts, [0, *counts], strict=False) if n != before],
        "killed_s": watcher.killed_s,
        "two_again_s": two_again_s(watcher),
        "requests": report["requests"],
        "wrong_answers": report["wrong_answers"],
        "lost": report["lost"],
        "failed": report["failed"],
        "failed_after_kill": sum(
            row["failed"] for row in seconds if int(row["second"]) in around_kill
        ),
        "p99_ms_by_step": [step["response_percentiles_ms"]["99"] for step in report["by_step"]],
        "share_within_sla_by_second": [row["within_sla_share"] for row in seconds],
    }
    if as_json:
        print_json(result)
        return
    for name, value in result.items():
        if not isinstance(value, list) or len(value) <= MAX_ENTRIES_SHOWN:
            print(f"{name:20} {value}")


if __name__ == "__main__":
    main()
