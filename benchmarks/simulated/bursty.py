"""What bursts do to a percentile that was computed for Poisson arrivals, and what saves it.

    python -m benchmarks.simulated.bursty [--json]

Arrivals of a two-state MMPP (the rate jumps between 1 - swing and 1 + swing times the mean, staying
an exponential time in each), GoogLeNet on a Tesla P4, SLA 99% within 20 ms. Simulated are the
policies of one table: looked up at the mean rate, as if arrivals were Poisson; and looked up by
`PolicyTable.lookup_bursty` with the index of dispersion of counts in 0.1 s windows. A policy that
looks at the momentary rate, known to it exactly, stands beside them.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass

import click
import numpy as np
from numpy.typing import NDArray

from policy.batching_policy import BatchingPolicy
from policy.burstiness import DispersionMeter
from policy.profile import Profile
from policy.table import ServiceLevelObjective, solve_table
from sojourn.output import json_option, print_json, print_table

FloatArray = NDArray[np.float64]
SIZES = np.arange(1, 33)
PROFILE = Profile("googlenet", "tesla-p4", 1.052 + 0.3051 * SIZES, 19.60 + 19.90 * SIZES)
OBJECTIVE = ServiceLevelObjective(20, 99)
WINDOW_S = 0.1
REQUESTS = 300_000


@dataclass(frozen=True)
class Row:
    """What became of one stream under one way to choose the policy."""

    load: float
    swing: float
    stay_s: float
    index: float
    lookup: str
    p99_ms: float
    in_time: float
    power_w: float


def mmpp_ms(
    rng: np.random.Generator, rate_per_s: float, swing: float, stay_s: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Arrival times (ms) of a two-state MMPP, the times of its jumps and the rates after them."""
    jumps = int(2 * REQUESTS / rate_per_s / stay_s) + 20
    ends = np.cumsum(rng.exponential(stay_s, jumps))
    starts = np.append(0.0, ends[:-1])
    rates = rate_per_s * (1 + swing * np.where(np.arange(jumps) % 2, 1, -1))
    counts = rng.poisson(rates * (ends - starts))
    times = np.sort(
        np.repeat(starts, counts) + np.repeat(ends - starts, counts) * rng.random(counts.sum())
    )
    return 1e3 * times[:REQUESTS], 1e3 * starts, rates


def simulate(
    arrivals_ms: FloatArray, policy_at: Callable[[float], BatchingPolicy]
) -> tuple[FloatArray, float]:
    """Response times (ms) and mean power (W) of one device, batch by batch.

    Only control limits with a max wait, which is what a table for an SLA holds.
    """
    assert PROFILE.energy_mj is not None
    arrivals = arrivals_ms.tolist()
    latency, energy = PROFILE.latency_ms.tolist(), PROFILE.energy_mj.tolist()
    responses = np.empty(len(arrivals))
    first, free, spent, there = 0, 0.0, 0.0, 0
    while first < len(arrivals):
        policy = policy_at(max(free, arrivals[first]))
        last = first + policy.control_limit - 1
        start = arrivals[last] if last < len(arrivals) else np.inf
        if policy.max_wait_ms is not None:
            start = min(start, arrivals[first] + policy.max_wait_ms)
        if start == np.inf:
            break
        start = max(start, free)
        there = max(there, first)
        while there < len(arrivals) and arrivals[there] <= start:
            there += 1
        size = min(there - first, policy.max_batch_size)
        free = start + latency[size - 1]
        spent += energy[size - 1]
        responses[first : first + size] = free - arrivals_ms[first : first + size]
        first += size
    return responses[:first], spent / free


def rows_of(load: float, swing: float, stay_s: float, seed: int) -> list[Row]:
    """Simulate the same stream under each way to choose the policy."""
    rng = np.random.default_rng(seed)
    rate = load * PROFILE.capacity_per_s
    arrivals, starts, rates = mmpp_ms(rng, rate, swing, stay_s)
    meter = DispersionMeter(memory=1e6)
    for count in np.histogram(arrivals, np.arange(0, arrivals[-1], 1e3 * WINDOW_S))[0].tolist():
        meter.observe(count)
    index = meter.index
    table = TABLE
    steady, safe = table.lookup(rate), table.lookup_bursty(rate, index, WINDOW_S)

    def momentary(now_ms: float) -> BatchingPolicy:
        return table.lookup(float(rates[np.searchsorted(starts, now_ms, "right") - 1]))

    ways = {
        "mean rate": lambda now_ms: steady,
        "bursty": lambda now_ms: safe,
        "momentary rate": momentary,
        "always at once": lambda now_ms: table.lookup(np.inf),
    }
    rows = []
    for name, policy_at in ways.items():
        responses, power_w = simulate(arrivals, policy_at)
        in_time = float(np.mean(responses <= OBJECTIVE.response_time_ms))
        p99_ms = float(np.percentile(responses, OBJECTIVE.percentile))
        rows.append(Row(load, swing, stay_s, index, name, p99_ms, in_time, power_w))
    return rows


TABLE = solve_table(PROFILE, OBJECTIVE, np.linspace(0.04, 0.96, 24) * PROFILE.capacity_per_s)


@click.command()
@json_option
def main(as_json: bool) -> None:
    """Simulate bursts under an SLA."""
    rows = [
        row
        for load in (0.2, 0.4, 0.6)
        for swing, stay_s in ((0.0, 1.0), (0.3, 0.5), (0.5, 0.5), (0.8, 0.5), (0.5, 5.0))
        for row in rows_of(load, swing, stay_s, seed=round(100 * load + 10 * swing))
    ]
    if as_json:
        print_json({"objective": asdict(OBJECTIVE), "rows": [asdict(row) for row in rows]})
        return
    print_table(
        ("load", "swing", "stay s", "index", "looked up at", "p99 ms", "in time", "power W"),
        [
            (
                f"{row.load:g}",
                f"{row.swing:g}",
                f"{row.stay_s:g}",
                f"{row.index:.3g}",
                row.lookup,
                f"{row.p99_ms:.2f}",
                f"{row.in_time:.3%}",
                f"{row.power_w:.2f}",
            )
            for row in rows
        ],
        title="99% within 20 ms",
    )


if __name__ == "__main__":
    main()
