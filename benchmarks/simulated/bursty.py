"""Measure what bursts do to an SLA that a policy for Poisson arrivals keeps, and what helps.

    python -m benchmarks.simulated.bursty [--mmpp] [--quick] [--json]

Arrivals follow a two-state MMPP: the rate jumps between 1 - swing and 1 + swing times its mean, and
stays in each state for an exponential time. The device is GoogLeNet on a Tesla P4, the SLA 99%
within 20 ms. All policies come from one table, looked up in four ways:

- mean rate: as if arrivals were Poisson;
- bursty: by `PolicyTable.lookup_bursty`, with the index of dispersion of counts per 0.1 s;
- momentary rate: at the current rate, as if it were known exactly;
- always at once: never waiting for a larger batch.

With ``--mmpp`` there is a fifth, which is not from the table: the policy of least power under the
MMPP(2) that `CountMoments` finds in the counts per 0.1 s. The search for it takes up to half a
minute for each arrival stream.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass

import click
import numpy as np
from numpy.typing import NDArray

from benchmarks.arguments import json_option, quick_option
from benchmarks.inputs import GOOGLENET_P4
from policy.batching_policy import BatchingPolicy
from policy.burstiness import COUNT_WINDOW_S, DispersionMeter
from policy.errors import InfeasibleError
from policy.mmpp import CountMoments
from policy.objective import ServiceLevelObjective
from policy.solvers import mmpp
from policy.table import PolicyTable, solve_table
from sojourn.output import print_json, print_table

FloatArray = NDArray[np.float64]
OBJECTIVE = ServiceLevelObjective(20, 99)


@dataclass(frozen=True)
class Row:
    """The outcome of one arrival stream under one way of looking up the policy.

    Attributes
    ----------
    load : float
        Mean arrival rate as a fraction of the capacity.
    swing : float
        How far the rate jumps, as a fraction of its mean.
    stay_s : float
        Mean time in each state.
    index : float
        Measured index of dispersion of counts.
    lookup : str
    p99_ms, in_time, power_w : float
        The SLA's percentile, the fraction of requests in time, the mean power.
    """

    load: float
    swing: float
    stay_s: float
    index: float
    lookup: str
    p99_ms: float
    in_time: float
    power_w: float


def mmpp_ms(
    rng: np.random.Generator, rate_per_s: float, swing: float, stay_s: float, requests: int
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Draw a two-state MMPP.

    Returns
    -------
    arrivals_ms : ndarray of float, shape (requests,)
    jumps_ms : ndarray of float, shape (jumps,)
        When the rate changed.
    rates_per_s : ndarray of float, shape (jumps,)
        The rate after each change.
    """
    jumps = int(2 * requests / rate_per_s / stay_s) + 20
    ends = np.cumsum(rng.exponential(stay_s, jumps))
    starts = np.append(0.0, ends[:-1])
    rates = rate_per_s * (1 + swing * np.where(np.arange(jumps) % 2, 1, -1))
    counts = rng.poisson(rates * (ends - starts))
    times = np.sort(
        np.repeat(starts, counts) + np.repeat(ends - starts, counts) * rng.random(counts.sum())
    )
    return 1e3 * times[:requests], 1e3 * starts, rates


def simulate(
    arrivals_ms: FloatArray, policy_at: Callable[[float], BatchingPolicy]
) -> tuple[FloatArray, float]:
    """Simulate one device, batch by batch.

    It follows a control limit with a max wait, the only kind of policy in a table for an SLA.

    Parameters
    ----------
    arrivals_ms : ndarray of float, shape (requests,)
    policy_at : callable
        Returns the policy in force at a time in ms.

    Returns
    -------
    response_ms : ndarray of float
        Response times of all requests that were served.
    power_w : float
        Mean power.
    """
    assert GOOGLENET_P4.energy_mj is not None
    arrivals = arrivals_ms.tolist()
    latency, energy = GOOGLENET_P4.latency_ms.tolist(), GOOGLENET_P4.energy_mj.tolist()
    responses = np.empty(len(arrivals))
    # `first` is the oldest request waiting, `arrived` counts those that arrived by the start.
    first, free, spent, arrived = 0, 0.0, 0.0, 0
    while first < len(arrivals):
        policy = policy_at(max(free, arrivals[first]))
        last = first + policy.control_limit - 1
        start = arrivals[last] if last < len(arrivals) else np.inf
        if policy.max_wait_ms is not None:
            start = min(start, arrivals[first] + policy.max_wait_ms)
        if start == np.inf:
            break
        start = max(start, free)
        arrived = max(arrived, first)
        while arrived < len(arrivals) and arrivals[arrived] <= start:
            arrived += 1
        size = min(arrived - first, policy.max_batch_size)
        free = start + latency[size - 1]
        spent += energy[size - 1]
        responses[first : first + size] = free - arrivals_ms[first : first + size]
        first += size
    return responses[:first], spent / free


def policy_for_mmpp(counts: list[int]) -> BatchingPolicy | None:
    """Return the policy for the MMPP found in `counts`; None if it has none."""
    moments = CountMoments(COUNT_WINDOW_S, memory_s=1e6)
    for count in counts:
        moments.observe(count)
    process = moments.fit()
    if process is None:
        return None
    try:
        return mmpp.solve(GOOGLENET_P4, process, OBJECTIVE).policy
    except InfeasibleError:
        return None


def measure(
    table: PolicyTable,
    load: float,
    swing: float,
    stay_s: float,
    requests: int,
    *,
    with_mmpp: bool = False,
) -> list[Row]:
    """Simulate one arrival stream under each way of looking up the policy."""
    rng = np.random.default_rng(round(100 * load + 10 * swing))
    rate = load * GOOGLENET_P4.capacity_per_s
    arrivals, starts, rates = mmpp_ms(rng, rate, swing, stay_s, requests)
    windows_ms = np.arange(0, arrivals[-1], 1e3 * COUNT_WINDOW_S)
    counts = np.histogram(arrivals, windows_ms)[0].tolist()
    meter = DispersionMeter(memory=1e6)
    for count in counts:
        meter.observe(count)
    index = meter.index
    steady, safe = table.lookup(rate), table.lookup_bursty(rate, index, COUNT_WINDOW_S)

    def momentary(now_ms: float) -> BatchingPolicy:
        return table.lookup(float(rates[np.searchsorted(starts, now_ms, "right") - 1]))

    lookups: dict[str, Callable[[float], BatchingPolicy]] = {
        "mean rate": lambda now_ms: steady,
        "bursty": lambda now_ms: safe,
        "momentary rate": momentary,
        "always at once": lambda now_ms: table.lookup(np.inf),
    }
    if with_mmpp and (found := policy_for_mmpp(counts)) is not None:
        lookups["MMPP"] = lambda now_ms: found
    rows = []
    for name, policy_at in lookups.items():
        responses, power_w = simulate(arrivals, policy_at)
        in_time = float(np.mean(responses <= OBJECTIVE.response_time_ms))
        p99_ms = float(np.percentile(responses, OBJECTIVE.percentile))
        rows.append(Row(load, swing, stay_s, index, name, p99_ms, in_time, power_w))
    return rows


@click.command()
@click.option("--mmpp", "with_mmpp", is_flag=True, help="Also search a policy for the MMPP (slow).")
@quick_option("A tenth of the requests.")
@json_option
def main(with_mmpp: bool, quick: bool, as_json: bool) -> None:
    """Measure what bursts do to an SLA, and what helps."""
    requests = 30_000 if quick else 300_000
    rates_per_s = np.linspace(0.04, 0.96, 24) * GOOGLENET_P4.capacity_per_s
    table = solve_table(GOOGLENET_P4, OBJECTIVE, rates_per_s.tolist())
    rows = [
        row
        for load in (0.2, 0.4, 0.6)
        for swing, stay_s in ((0.0, 1.0), (0.3, 0.5), (0.5, 0.5), (0.8, 0.5), (0.5, 5.0))
        for row in measure(table, load, swing, stay_s, requests, with_mmpp=with_mmpp)
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
