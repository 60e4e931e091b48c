"""Search policies beyond ours: a threshold of the oldest request's age for each queue length.

    python -m benchmarks.paper.age_thresholds [--quick] [--json]

Under an SLA we search a control limit and a max wait: below the limit the device starts when the
oldest request has waited for one time, the same at all queue lengths. Here each queue length has a
time of its own. The search starts at our policy, or where the oldest request has just so much time
left that its batch can be answered in time, whichever is better. It changes the times of a few
neighboring lengths at random, on simulated arrivals, and keeps what lowers the power with no more
requests late than under our policy. It sees the arrivals that it is judged by, so it saves more
than it would on others. What it cannot save, a bound on the power (`benchmarks.paper.power_bounds`)
owes to the knowledge of the future.
"""

from dataclasses import asdict, dataclass

import click
import numba
import numpy as np
from numpy.typing import NDArray

from benchmarks.arguments import json_option, quick_option
from benchmarks.inputs import GOOGLENET_P4
from benchmarks.paper.power_bounds import PERCENTILE
from policy.objective import ServiceLevelObjective
from policy.optimization import solve
from sojourn.output import print_json, print_table

FloatArray = NDArray[np.float64]

# Where the gap to the bound is largest, and one where it is small.
CASES = ((0.3, 5.0), (0.7, 10.0), (0.5, 10.0))
_SEED = 1


@dataclass(frozen=True)
class Row:
    """Our policy and the best thresholds found, on the same arrivals.

    Attributes
    ----------
    load, response_time_ms : float
    late_share : float
        Of our policy; that of the thresholds is at most this.
    power_w, thresholds_power_w : float
    saved : float
        Relative.
    thresholds_ms : list of float
        By queue length, from 1.
    """

    load: float
    response_time_ms: float
    late_share: float
    power_w: float
    thresholds_power_w: float
    saved: float
    thresholds_ms: list[float]


@numba.njit(cache=True)
def simulate(
    arrivals_ms: FloatArray,
    latency_ms: FloatArray,
    energy_mj: FloatArray,
    thresholds_ms: FloatArray,
    response_time_ms: float,
) -> tuple[float, float]:
    """Simulate one device that starts all that wait, up to a full batch.

    Parameters
    ----------
    arrivals_ms : ndarray of float
        Ascending.
    latency_ms, energy_mj : ndarray of float, shape (max_batch_size,)
    thresholds_ms : ndarray of float, shape (max_batch_size - 1,)
        Age of the oldest request at which a free device starts, by queue length from 1.
    response_time_ms : float
        A request that takes longer is late.

    Returns
    -------
    late_share, power_w : float
    """
    requests, largest = arrivals_ms.size, latency_ms.size
    first = arrived = late = 0
    now = spent = 0.0
    while first < requests:
        if arrived == first:
            now = max(now, arrivals_ms[first])
        while arrived < requests and arrivals_ms[arrived] <= now:
            arrived += 1
        while arrived - first < largest:
            due = arrivals_ms[first] + thresholds_ms[arrived - first - 1]
            if due <= now:
                break
            if arrived < requests and arrivals_ms[arrived] < due:
                now = arrivals_ms[arrived]
                arrived += 1
            else:
                now = due
        size = min(arrived - first, largest)
        now += latency_ms[size - 1]
        spent += energy_mj[size - 1]
        for request in range(first, first + size):
            late += now - arrivals_ms[request] > response_time_ms
        first += size
    return late / requests, spent / now


def search(load: float, response_time_ms: float, requests: int, rounds: int) -> Row:
    """Search thresholds from our policy on."""
    profile = GOOGLENET_P4
    assert profile.energy_mj is not None
    latency_ms, energy_mj = profile.latency_ms, profile.energy_mj
    rate_per_s = load * profile.capacity_per_s
    generator = np.random.default_rng(_SEED)
    arrivals_ms = np.cumsum(generator.exponential(1e3 / rate_per_s, requests))
    policy = solve(profile, rate_per_s, ServiceLevelObjective(response_time_ms, PERCENTILE)).policy
    thresholds = np.zeros(profile.max_batch_size - 1)
    wait_ms = np.inf if policy.max_wait_ms is None else policy.max_wait_ms
    thresholds[: policy.control_limit - 1] = wait_ms

    def simulated(tried: FloatArray) -> tuple[float, float]:
        late, power_w = simulate(arrivals_ms, latency_ms, energy_mj, tried, response_time_ms)
        return float(late), float(power_w)

    late_share, power_w = simulated(thresholds)
    best, best_w = thresholds, power_w
    lengths = np.arange(1, profile.max_batch_size)
    for limit in range(2, 3 * policy.control_limit):
        for spare in np.linspace(0, 0.3, 16):
            left_ms = (1 - spare) * response_time_ms - latency_ms[:-1]
            tried = np.where(lengths < limit, np.maximum(left_ms, 0.0), 0.0)
            late, tried_w = simulated(tried)
            if late <= late_share and tried_w < best_w:
                best, best_w = tried, tried_w
    reach = min(3 * policy.control_limit, thresholds.size)
    for _ in range(rounds):
        tried = best.copy()
        for _ in range(generator.integers(1, 4)):
            low = generator.integers(0, reach)
            high = low + generator.integers(1, 6)
            change = response_time_ms / 8 * generator.normal() * generator.random() ** 2
            tried[low:high] = np.clip(tried[low:high] + change, 0.0, response_time_ms)
        late, tried_w = simulated(tried)
        if late <= late_share and tried_w < best_w:
            best, best_w = tried, tried_w
    saved = 1 - best_w / power_w
    return Row(load, response_time_ms, late_share, power_w, best_w, saved, best.tolist())


@click.command()
@quick_option("Fewer requests and rounds.")
@json_option
def main(quick: bool, as_json: bool) -> None:
    """Search policies with an age threshold for each queue length, from our policies on."""
    requests, rounds = (20_000, 200) if quick else (200_000, 500)
    rows = [search(load, target, requests, rounds) for load, target in CASES]
    if as_json:
        print_json({"requests": requests, "rows": [asdict(row) for row in rows]})
        return
    print_table(
        ("load", "SLA ms", "late", "policy W", "thresholds W", "saved"),
        [
            (
                row.load,
                row.response_time_ms,
                f"{row.late_share:.3%}",
                f"{row.power_w:.3f}",
                f"{row.thresholds_power_w:.3f}",
                f"{row.saved:.2%}",
            )
            for row in rows
        ],
        title=f"An age threshold for each queue length: {requests:,} requests, {rounds:,} rounds",
    )


if __name__ == "__main__":
    main()
