"""A load step against the real thing: 1 → 2 → 1 replicas, and a replica killed on the way.

Serves configs/emulated-p4.yaml with `sojourn serve`, sends it Locust load that needs one replica,
then two, then one again, kills a replica with SIGKILL in the middle, and draws what happened::

    python -m benchmarks.live.load_step [--json] [--plot docs/images/load_step.png]

Takes about four minutes.
"""

import argparse
import csv
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "configs/emulated-p4.yaml"
PORT = 8124
LOW_PER_S, HIGH_PER_S = 40, 100
STEPS_S = (30, 80, 60)
KILL_AT_S = 80.0


@contextmanager
def service(config: Path = CONFIG, port: int = PORT) -> Iterator[dict[str, Any]]:
    """Run `sojourn serve` and give what it says of itself."""
    command = [sys.executable, "-m", "sojourn.cli", "serve", str(config), "--port", str(port)]
    process = subprocess.Popen([*command, "--json"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines: list[str] = []
    try:
        for line in process.stdout:
            lines.append(line)
            if line.rstrip() == "}":
                break
        else:
            raise SystemExit("sojourn serve did not come up")
        yield json.loads("".join(lines))
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def running_replicas(dashboard: str) -> dict[str, int]:
    """Replicas that run, and their process ids, from Serve's own status."""
    with urllib.request.urlopen(f"{dashboard}/api/serve/applications/", timeout=5) as answer:
        (application,) = json.load(answer)["applications"].values()
    (deployment,) = application["deployments"].values()
    replicas = deployment["replicas"]
    return {one["replica_id"]: one["pid"] for one in replicas if one["state"] == "RUNNING"}


def offered_rows(url: str) -> int:
    """Rows that the replica has been offered so far."""
    with urllib.request.urlopen(f"{url}/sojourn/policy", timeout=5) as answer:
        return int(json.load(answer)["rows"]["offered"])


class Watcher(threading.Thread):
    """Counts the running replicas, and kills one when its time has come.

    Times are in seconds since the first request reached the service.
    """

    def __init__(self, url: str, dashboard: str) -> None:
        super().__init__(daemon=True)
        self.counts: list[tuple[float, int]] = []
        self.killed_s: float | None = None
        self._url = url
        self._dashboard = dashboard
        self._ended = threading.Event()

    def run(self) -> None:
        """Watch until `end`."""
        while not offered_rows(self._url) and not self._ended.wait(0.1):
            pass
        started_s = time.monotonic()
        while not self._ended.wait(0.25):
            now_s = time.monotonic() - started_s
            replicas = running_replicas(self._dashboard)
            self.counts.append((now_s, len(replicas)))
            if self.killed_s is None and now_s >= KILL_AT_S and len(replicas) > 1:
                os.kill(next(iter(replicas.values())), signal.SIGKILL)
                self.killed_s = now_s

    def end(self) -> None:
        """Stop watching."""
        self._ended.set()
        self.join()


def load_test(url: str, out: str) -> tuple[dict[str, Any], list[dict[str, float]]]:
    """Run `sojourn loadtest` and give its report, and its seconds."""
    rates = (LOW_PER_S, HIGH_PER_S, LOW_PER_S)
    shape = ",".join(f"{s}s:{rate}" for s, rate in zip(STEPS_S, rates, strict=True))
    command = [sys.executable, "-m", "sojourn.cli", "loadtest", "--url", url]
    subprocess.run(
        [*command, "--model", "googlenet", "--shape", shape, "--out", out, "--json"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    report: dict[str, Any] = json.loads((Path(out) / "report.json").read_text())
    with (Path(out) / "seconds.csv").open() as file:
        seconds = [
            {name: float(value or "nan") for name, value in row.items()}
            for row in csv.DictReader(file)
        ]
    return report, seconds


def draw(path: Path, seconds: list[dict[str, float]], watcher: Watcher, sla_ms: float) -> None:
    """Draw arrivals, replicas and the 99th percentile over time."""
    figure = Figure(figsize=(9, 5), layout="constrained", dpi=120)
    FigureCanvasAgg(figure)
    load, replicas, response = figure.subplots(3, 1, sharex=True, height_ratios=(2, 1.2, 2))
    time_s = [row["second"] + 0.5 for row in seconds]
    load.fill_between(time_s, [row["sent"] for row in seconds], step="mid", color="#56B4E9")
    load.set_ylabel("requests/s")
    load.set_ylim(bottom=0)
    replicas.step(*zip(*watcher.counts, strict=True), where="post", color="#222222", linewidth=2)
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


def two_again_s(watcher: Watcher) -> float | None:
    """Seconds from the kill until Serve counts two replicas again, after it noticed."""
    assert watcher.killed_s is not None
    noticed = False
    for at_s, count in watcher.counts:
        if at_s > watcher.killed_s:
            noticed = noticed or count < 2
            if noticed and count == 2:
                return at_s - watcher.killed_s
    return None


def main() -> None:
    """Run the step and say what happened."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--plot", type=Path, help="draw to this PNG file")
    options = parser.parse_args()
    with service() as summary, tempfile.TemporaryDirectory() as out:
        watcher = Watcher(summary["url"], summary["dashboard"])
        watcher.start()
        report, seconds = load_test(summary["url"], out)
        while len(running_replicas(summary["dashboard"])) > 1:
            time.sleep(0.5)
        time.sleep(1)
        watcher.end()
    assert watcher.killed_s is not None
    sla_ms = report["sla"]["response_time_ms"]
    if options.plot:
        draw(options.plot, seconds, watcher, sla_ms)
    settled = [count for _, count in watcher.counts]
    around_kill = range(int(watcher.killed_s) - 2, int(watcher.killed_s) + 11)
    result = {
        "replicas": [n for n, m in zip(settled, [0, *settled], strict=False) if n != m],
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
    if options.json:
        print(json.dumps(result, indent=1))
        return
    for name, value in result.items():
        if not isinstance(value, list) or len(value) < 10:
            print(f"{name:20} {value}")


if __name__ == "__main__":
    main()
