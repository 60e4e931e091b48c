"""Measure what bursts do to an SLA that a policy for Poisson arrivals keeps, and what helps.

    python -m benchmarks.simulated.bursty [--mmpp | --estimates] [--quick] [--json]

Arrivals follow a two-state MMPP: the rate jumps between two values and stays at each for an
exponential time. The device is GoogLeNet on a Tesla P4, the SLA 99% within 20 ms. Four policies
come from one table, looked up in different ways:

- mean: as if arrivals were Poisson;
- bursty: by `PolicyTable.lookup_bursty`, with the index of dispersion of counts per 0.1 s;
- momentary: at the current rate, as if it were known exactly;
- at once: never waiting for a larger batch.

With ``--mmpp`` there is a fifth, found as replicas find theirs: the policy of least power under the
MMPP(2) that `CountMoments` finds in the counts per 0.1 s, with the same memory and margin. The
search takes a few seconds for each arrival stream.

``--estimates`` shows instead what errors of the estimate do: policies for processes estimated from
600 s of counts, with several margins, evaluated under the true process.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import click
import numpy as np
from numpy.typing import NDArray

from benchmarks.arguments import json_option, quick_option
from benchmarks.inputs import GOOGLENET_P4
from deployments.control.burst_policy import MEMORY_S
from deployments.control.burst_policy_process import MARGIN
from policy.batching_policy import BatchingPolicy
from policy.burstiness import COUNT_WINDOW_S, DispersionMeter
from policy.errors import InfeasibleError
from policy.mmpp import CountMoments, Mmpp
from policy.objective import ServiceLevelObjective
from policy.optimization import solve
from policy.response_time.mmpp import MmppEvaluation, evaluate_mmpp
from policy.solvers import mmpp
from policy.table import PolicyTable
from policy.table_solving import solve_table
from sojourn.output import print_json, print_table
from tests.support.mmpp_counts import mmpp_counts

FloatArray = NDArray[np.float64]
OBJECTIVE = ServiceLevelObjective(20, 99)
MARGINS = (0.0, 0.15, MARGIN)


@dataclass(frozen=True)
class Row:
    """The outcome of one arrival stream under one way of looking up the policy.

    Attributes
    ----------
    load : float
        Mean arrival rate as a fraction of the capacity.
    rates : tuple of two floats
        The rate in each state, as a fraction of its mean.
    stays_s : tuple of two floats
        Mean time in each state.
    index : float
        Measured index of dispersion of counts.
    lookup : str
    p99_ms, in_time, power_w : float
        The SLA's percentile, the fraction of requests in time, the mean power.
    search_s : float or None
        CPU time of the search for this policy; None if it comes from the table.
    """

    load: float
    rates: tuple[float, float]
    stays_s: tuple[float, float]
    index: float
    lookup: str
    p99_ms: float
    in_time: float
    power_w: float
    search_s: float | None


@dataclass(frozen=True)
class EstimateRow:
    """Shares in time and mean power of policies for several estimates of one process."""

    load: float
    rates: tuple[float, float]
    stays_s: tuple[float, float]
    margin: float
    least_in_time: float
    most_in_time: float
    power_w: float


def mmpp_ms(
    rng: np.random.Generator, process: Mmpp, requests: int
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
    cycles = int(2 * requests / process.mean_rate_per_s / sum(process.stays_s)) + 20
    ends = np.cumsum(rng.exponential(np.tile(process.stays_s, cycles)))
    starts = np.append(0.0, ends[:-1])
    rates = np.tile(process.rates_per_s, cycles)
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


def policy_for_mmpp(counts: list[int], table: PolicyTable) -> BatchingPolicy | None:
    """Return the policy for the MMPP found in `counts`; None if it has none."""
    moments = CountMoments(COUNT_WINDOW_S, MEMORY_S)
    for count in counts:
        moments.observe(count)
    process = moments.fit()
    if process is None:
        return None
    start = table.lookup(process.mean_rate_per_s)
    try:
        return mmpp.solve(GOOGLENET_P4, process, OBJECTIVE, start=start, margin=MARGIN).policy
    except InfeasibleError:
        return None


def measure(
    table: PolicyTable,
    load: float,
    rates: tuple[float, float],
    stays_s: tuple[float, float],
    requests: int,
    *,
    with_mmpp: bool = False,
) -> list[Row]:
    """Simulate one arrival stream under each way of looking up the policy."""
    rng = np.random.default_rng(round(100 * load + 10 * rates[1]))
    rate = load * GOOGLENET_P4.capacity_per_s
    process = Mmpp((rate * rates[0], rate * rates[1]), stays_s)
    arrivals, starts, rates_per_s = mmpp_ms(rng, process, requests)
    windows_ms = np.arange(0, arrivals[-1], 1e3 * COUNT_WINDOW_S)
    counts = np.histogram(arrivals, windows_ms)[0].tolist()
    meter = DispersionMeter(memory=1e6)
    for count in counts:
        meter.observe(count)
    index = meter.index
    steady, safe = table.lookup(rate), table.lookup_bursty(rate, index, COUNT_WINDOW_S)

    def momentary(now_ms: float) -> BatchingPolicy:
        return table.lookup(float(rates_per_s[np.searchsorted(starts, now_ms, "right") - 1]))

    lookups: dict[str, Callable[[float], BatchingPolicy]] = {
        "mean": lambda now_ms: steady,
        "bursty": lambda now_ms: safe,
        "momentary": momentary,
        "at once": lambda now_ms: table.lookup(np.inf),
    }
    started_s = time.thread_time()
    if with_mmpp and (found := policy_for_mmpp(counts, table)) is not None:
        lookups["MMPP"] = lambda now_ms: found
    searched_s = time.thread_time() - started_s
    rows = []
    for name, policy_at in lookups.items():
        responses, power_w = simulate(arrivals, policy_at)
        in_time = float(np.mean(responses <= OBJECTIVE.response_time_ms))
        p99_ms = float(np.percentile(responses, OBJECTIVE.percentile))
        search_s = searched_s if name == "MMPP" else None
        outcome = (p99_ms, in_time, power_w, search_s)
        rows.append(Row(load, rates, stays_s, index, name, *outcome))
    return rows


def settings() -> list[tuple[float, tuple[float, float], tuple[float, float]]]:
    """Return loads, rates as fractions of their mean, and stays in seconds."""
    swings = ((0.0, 1.0), (0.3, 0.5), (0.5, 0.5), (0.8, 0.5), (0.5, 5.0))
    found = [
        (load, (1 - swing, 1 + swing), (stay_s, stay_s))
        for load in (0.2, 0.4, 0.6)
        for swing, stay_s in swings
    ]
    # A tenth of the time at three times the mean rate.
    return [*found, (0.3, (0.7 / 0.9, 3.0), (4.5, 0.5))]


def measure_estimates(estimates: int) -> list[EstimateRow]:
    """Evaluate policies for estimated processes under the true ones."""
    rows = []
    for load, rates, stays_s in settings()[-4:]:
        rate = load * GOOGLENET_P4.capacity_per_s
        if load * max(rates) >= 1:
            continue
        process = Mmpp((rate * rates[0], rate * rates[1]), stays_s)
        found: dict[float, list[MmppEvaluation]] = {margin: [] for margin in MARGINS}
        for seed in range(estimates):
            moments = CountMoments(COUNT_WINDOW_S, MEMORY_S)
            for count in mmpp_counts(process, 6000, COUNT_WINDOW_S, seed):
                moments.observe(count)
            estimate = moments.fit()
            assert estimate is not None
            start = solve(GOOGLENET_P4, estimate.mean_rate_per_s, OBJECTIVE).policy
            for margin, evaluations in found.items():
                policy = mmpp.solve(
                    GOOGLENET_P4, estimate, OBJECTIVE, start=start, margin=margin, waiting_room=160
                ).policy
                evaluations.append(evaluate_mmpp(GOOGLENET_P4, policy, process))
        for margin, evaluations in found.items():
            levels = [one.service_level(OBJECTIVE.response_time_ms) for one in evaluations]
            power_w = float(np.mean([one.mean_power_w for one in evaluations]))
            rows.append(
                EstimateRow(load, rates, stays_s, margin, min(levels), max(levels), power_w)
            )
    return rows


@click.command()
@click.option("--mmpp", "with_mmpp", is_flag=True, help="Also search a policy for the MMPP.")
@click.option("--estimates", is_flag=True, help="Measure what errors of the estimate do instead.")
@quick_option("A tenth of the requests; two estimates in place of eight.")
@json_option
def main(with_mmpp: bool, estimates: bool, quick: bool, as_json: bool) -> None:
    """Measure what bursts do to an SLA, and what helps."""
    if estimates:
        print_estimates(measure_estimates(2 if quick else 8), as_json=as_json)
        return
    requests = 30_000 if quick else 300_000
    rates_per_s = np.linspace(0.04, 0.96, 24) * GOOGLENET_P4.capacity_per_s
    table = solve_table(GOOGLENET_P4, OBJECTIVE, rates_per_s.tolist())
    rows = [
        row
        for load, rates, stays_s in settings()
        for row in measure(table, load, rates, stays_s, requests, with_mmpp=with_mmpp)
    ]
    if as_json:
        print_json({"objective": asdict(OBJECTIVE), "rows": [asdict(row) for row in rows]})
        return
    print_table(
        ("load", "rates", "stays s", "index", "looked up at", "p99 ms", "in time", "W"),
        [
            (
                f"{row.load:g}",
                "/".join(f"{rate:.2g}" for rate in row.rates),
                "/".join(f"{stay:g}" for stay in row.stays_s),
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
    searches_s = [row.search_s for row in rows if row.search_s is not None]
    if searches_s:
        print(f"The searches for the MMPPs took up to {max(searches_s):.1f} s of CPU time.")


def print_estimates(rows: list[EstimateRow], *, as_json: bool) -> None:
    """Print what policies for estimated processes achieve."""
    if as_json:
        print_json({"objective": asdict(OBJECTIVE), "rows": [asdict(row) for row in rows]})
        return
    print_table(
        ("load", "rates", "stays s", "margin", "in time", "W"),
        [
            (
                f"{row.load:g}",
                "/".join(f"{rate:.2g}" for rate in row.rates),
                "/".join(f"{stay:g}" for stay in row.stays_s),
                f"{row.margin:g}",
                f"{row.least_in_time:.2%} to {row.most_in_time:.2%}",
                f"{row.power_w:.2f}",
            )
            for row in rows
        ],
        title="Policies for estimated processes: 99% within 20 ms",
    )


if __name__ == "__main__":
    main()
