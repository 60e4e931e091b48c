"""Measure how far RAND's theorems are from the retry protocol that they describe.

    python -m benchmarks.paper.rand_errors [--quick] [--json] [--plot FILE]

The protocol of Swayam is simulated event by event: each replica holds one request, executions take
a constant time S, and arrivals are Poisson. A request tries a replica at random; if refused, it
tries again at random after d₁ + d₂ + Δ, until it finds a free one. The simulation is compared with
the service level by Theorem 2 and the 99th percentile by Theorem 1 (plus S).

`hopeful` is by how much the theorem's service level exceeds the simulated one, at the response
time where it is worst; `pessimistic` by how much it falls short; `bound` is what
`autoscaler.sizing.rand.theorem_error_bound` allows for `hopeful`.
"""

import heapq
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import matplotlib.pyplot as plt
import numba
import numpy as np
from numpy.typing import NDArray
from rich.progress import track

from autoscaler.sizing.rand import response_time_cdf, theorem_error_bound, waiting_time_percentile
from benchmarks.arguments import json_option, plot_option, print_result, quick_option
from policy.try_delays import TryDelays

EXECUTION_MS = 10.0
ONE_WAY_MS = 0.25
INTENSITIES = (0.2, 0.4, 0.6, 0.8, 0.9, 0.95)
REPLICAS = (2, 4, 8, 16, 50, 200)
RETRY_DELAYS_MS = (0.0, 1.0, 2.5, 5.0, 10.0)
#: Nobody sizes a fleet for a lower service level, so errors below it do not count.
MIN_SERVICE_LEVEL = 0.9


@dataclass(frozen=True)
class Row:
    """The errors at one load, fleet size and retry delay."""

    replicas: int
    traffic_intensity: float
    retry_delay_ms: float
    simulated_p99_ms: float
    theorem_p99_ms: float
    hopeful: float
    pessimistic: float
    bound: float


@numba.njit(cache=True)
def response_times_ms(
    seed: int,
    replicas: int,
    arrivals_per_ms: float,
    execution_ms: float,
    request_ms: float,
    reply_ms: float,
    retry_ms: float,
    requests: int,
) -> NDArray[np.float64]:
    """Simulate the protocol and return the response times, without the first tenth (warm-up).

    The times `execution_ms`, `request_ms`, `reply_ms` and `retry_ms` are S, d₁, d₂ and Δ.
    """
    np.random.seed(seed)
    free_ms = np.zeros(replicas)
    arrival_ms = np.cumsum(np.random.exponential(1 / arrivals_per_ms, requests))
    response_ms = np.empty(requests)
    attempts = [(arrival_ms[0] + request_ms, 0)]
    arrived = 1
    while attempts:
        if arrived < requests and arrival_ms[arrived] + request_ms <= attempts[0][0]:
            now_ms, number = arrival_ms[arrived] + request_ms, arrived
            arrived += 1
        else:
            now_ms, number = heapq.heappop(attempts)
            if not attempts and arrived < requests:
                heapq.heappush(attempts, (arrival_ms[arrived] + request_ms, arrived))
                arrived += 1
        picked = np.random.randint(replicas)
        if free_ms[picked] <= now_ms:
            free_ms[picked] = now_ms + execution_ms
            response_ms[number] = free_ms[picked] - arrival_ms[number]
        else:
            heapq.heappush(attempts, (now_ms + reply_ms + retry_ms + request_ms, number))
    return response_ms[requests // 10 :]


def compare(replicas: int, traffic_intensity: float, retry_delay_ms: float, requests: int) -> Row:
    """Simulate one case and compare the theorems with it."""
    per_ms = traffic_intensity * replicas / EXECUTION_MS
    delays = (ONE_WAY_MS, ONE_WAY_MS, retry_delay_ms)
    simulated = np.sort(response_times_ms(1, replicas, per_ms, EXECUTION_MS, *delays, requests))
    load = (1e3 * per_ms, replicas, 1e3 / EXECUTION_MS)
    theorem_p99_ms = EXECUTION_MS + waiting_time_percentile(99, *load, TryDelays(*delays))
    times = np.linspace(EXECUTION_MS, 1.3 * float(np.quantile(simulated, 0.9997)), 500)
    theorem = response_time_cdf(times, traffic_intensity, EXECUTION_MS, TryDelays(*delays))
    found = np.searchsorted(simulated, times, side="right") / simulated.size
    above = (theorem - found)[theorem >= MIN_SERVICE_LEVEL]
    return Row(
        replicas,
        traffic_intensity,
        retry_delay_ms,
        float(np.quantile(simulated, 0.99)),
        theorem_p99_ms,
        float(above.max(initial=0.0)),
        float((-above).max(initial=0.0)),
        theorem_error_bound(
            traffic_intensity, replicas, 2 * ONE_WAY_MS + retry_delay_ms, EXECUTION_MS
        ),
    )


def plot(rows: list[Row], path: Path) -> None:
    """Draw how far Theorem 2 is too hopeful, over the number of replicas."""
    figure, panels = plt.subplots(1, len(RETRY_DELAYS_MS), figsize=(14, 3.4), sharey=True)
    colors = plt.get_cmap("viridis")(np.linspace(0, 0.9, len(INTENSITIES)))
    for panel, delay_ms in zip(panels, RETRY_DELAYS_MS, strict=True):
        for intensity, color in zip(INTENSITIES, colors, strict=True):
            mine = [
                row
                for row in rows
                if (row.retry_delay_ms, row.traffic_intensity) == (delay_ms, intensity)
            ]
            numbers = [row.replicas for row in mine]
            panel.plot(
                numbers,
                [100 * row.hopeful for row in mine],
                "o-",
                color=color,
                label=f"ρ = {intensity:g}",
            )
        panel.set(
            xscale="log",
            yscale="log",
            ylim=(0.05, 100),
            title=f"Δ = {delay_ms / EXECUTION_MS:g} executions",
            xlabel="replicas",
        )
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("Theorem 2 too hopeful by (points)")
    panels[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


@click.command()
@quick_option("A tenth of the requests.")
@plot_option
@json_option
def main(quick: bool, plot_file: Path | None, as_json: bool) -> None:
    """Measure how far RAND's Theorems 1 and 2 are from the protocol."""
    requests = 60_000 if quick else 600_000
    cases = [(n, rho, d) for n in REPLICAS for rho in INTENSITIES for d in RETRY_DELAYS_MS]
    rows = [compare(*case, requests) for case in track(cases, disable=as_json, transient=True)]
    if plot_file is not None:
        plot(rows, plot_file)
    print_result({"rows": [asdict(row) for row in rows]}, as_json)


if __name__ == "__main__":
    main()
