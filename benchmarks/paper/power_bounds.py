r"""Bound from below the power that any policy needs under an SLA, and report the gap of ours.

    python -m benchmarks.paper.power_bounds [--quick] [--json]

The bound is what a scheduler needs that knows all arrivals in advance. No policy that sees only
the past can need less. Three steps make it computable; each can only lower it.

- *Lagrangian.* Instead of the SLA, every late request costs :math:`\nu` mJ. If a share
  :math:`1 - p` may be late, the least :math:`\text{energy} + \nu \cdot \text{late} - \nu (1 - p)
  \cdot \text{requests}` is a bound for each :math:`\nu \ge 0`; the best :math:`\nu` is searched.
- *Late requests take no time.* They cost :math:`\nu` and the least energy by which one more
  request lengthens a batch, but no room in a batch: they are dropped.
- *The rest is served in order of arrival.* Exchanging two requests in time that are served out of
  order leaves both in time; if a request is dropped that arrived between two of the same batch,
  the oldest of that batch can be dropped instead. So batches hold consecutive requests, and drops
  lie between batches. A batch starts as soon as its last request is there and the device is free,
  as nothing is gained by waiting longer.

That leaves a dynamic program over the next request and the time at which the device is free, of
which only the pairs of time and cost matter that no other pair beats in both. The arrivals are
random, so the bound has a standard error.
"""

from dataclasses import asdict, dataclass

import click
import numba
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from benchmarks.arguments import json_option, quick_option
from benchmarks.inputs import GOOGLENET_P4
from policy.objective import ServiceLevelObjective
from policy.optimization import solve
from policy.profile import Profile
from sojourn.output import print_json, print_table

FloatArray = NDArray[np.float64]

LOADS = (0.1, 0.3, 0.5, 0.7, 0.9)
TARGETS_MS = (5.0, 10.0, 20.0)
PERCENTILE = 99.0
_SEED = 1
_LATE_COSTS_MJ = (0.1, 1000.0)  # the range searched for ν


@dataclass(frozen=True)
class Row:
    """Our policy's power and the bound, at one load and target.

    Attributes
    ----------
    load, response_time_ms : float
    power_w : float or None
        Of our policy; None if it does not keep the SLA.
    bound_w : float
        No policy that keeps the SLA needs less. Infinite (null in JSON) if it exceeds the power of
        a device that never rests by three standard errors: then no policy keeps the SLA.
    standard_error_w : float
        Of `bound_w`, from the independent samples of arrivals.
    late_cost_mj : float
        ν.
    """

    load: float
    response_time_ms: float
    power_w: float | None
    bound_w: float
    standard_error_w: float
    late_cost_mj: float


@numba.njit(cache=True)
def least_cost(
    arrival_ms: FloatArray,
    latency_ms: FloatArray,
    energy_mj: FloatArray,
    response_time_ms: float,
    late_cost_mj: float,
) -> float:
    """Return the least energy and cost of late requests that serves known arrivals.

    Parameters
    ----------
    arrival_ms : ndarray of float, shape (requests,)
        Ascending.
    latency_ms, energy_mj : ndarray of float, shape (max_batch_size,)
        Time and energy by batch size.
    response_time_ms : float
        A request that takes longer is late.
    late_cost_mj : float
        Cost of a late request, its energy included.

    Returns
    -------
    float
        mJ.
    """
    requests, largest = arrival_ms.size, latency_ms.size
    rows = largest + 1
    width = 64
    # By the next request, modulo `rows`: times at which the device is free, and costs until then.
    free_ms = np.empty((rows, width))
    cost_mj = np.empty((rows, width))
    counts = np.zeros(rows, np.int64)
    free_ms[0, 0], cost_mj[0, 0], counts[0] = arrival_ms[0], 0.0, 1
    for request in range(requests):
        here = request % rows
        for pair in range(counts[here]):
            for size in range(largest + 1):
                if request + size > requests:
                    break
                following = request + max(size, 1)
                end_ms, total_mj = free_ms[here, pair], cost_mj[here, pair]
                if size == 0:
                    total_mj += late_cost_mj
                else:
                    end_ms = max(end_ms, arrival_ms[following - 1]) + latency_ms[size - 1]
                    if end_ms - arrival_ms[request] > response_time_ms:
                        break
                    total_mj += energy_mj[size - 1]
                if following < requests:
                    end_ms = max(end_ms, arrival_ms[following])
                there = following % rows
                beaten = False
                for other in range(counts[there]):
                    if free_ms[there, other] <= end_ms and cost_mj[there, other] <= total_mj:
                        beaten = True
                        break
                if beaten:
                    continue
                kept = 0
                for other in range(counts[there]):
                    if free_ms[there, other] < end_ms or cost_mj[there, other] < total_mj:
                        free_ms[there, kept] = free_ms[there, other]
                        cost_mj[there, kept] = cost_mj[there, other]
                        kept += 1
                if kept == width:
                    width *= 2
                    wider = np.empty((2, rows, width))
                    wider[0, :, :kept] = free_ms
                    wider[1, :, :kept] = cost_mj
                    free_ms, cost_mj = wider[0], wider[1]
                free_ms[there, kept], cost_mj[there, kept] = end_ms, total_mj
                counts[there] = kept + 1
        counts[here] = 0
    last = requests % rows
    return float(cost_mj[last, : counts[last]].min())


def power_bounds_w(
    profile: Profile,
    rate_per_ms: float,
    arrivals_ms: FloatArray,
    objective: ServiceLevelObjective,
    late_cost_mj: float,
) -> FloatArray:
    """Return a bound (W) from each sample of arrivals, shape (samples, requests)."""
    assert profile.energy_mj is not None
    requests = arrivals_ms.shape[1]
    # Each request costs at least this, which is charged apart, so that costs repeat exactly.
    least_mj = float(np.diff(profile.energy_mj, prepend=0.0).min())
    sizes = np.arange(1, profile.max_batch_size + 1)
    more_mj = np.asarray(np.round(profile.energy_mj - least_mj * sizes, 9), dtype=np.float64)
    allowed = 1 - objective.percentile / 100
    costs = np.array(
        [
            least_cost(
                arrival_ms,
                profile.latency_ms,
                more_mj,
                objective.response_time_ms,
                late_cost_mj,
            )
            for arrival_ms in arrivals_ms
        ]
    )
    # A batch may hold the last requests of one sample and the first of the next: count it once.
    costs -= more_mj.max()
    bounds: FloatArray = rate_per_ms * (least_mj + costs / requests - late_cost_mj * allowed)
    return bounds


def bound(load: float, response_time_ms: float, samples: int, requests: int) -> Row:
    """Solve for our policy, and search the late cost that gives the greatest bound."""
    rate_per_ms = load * GOOGLENET_P4.capacity_per_s / 1e3
    objective = ServiceLevelObjective(response_time_ms, PERCENTILE)
    generator = np.random.default_rng(_SEED)
    arrivals_ms = np.cumsum(generator.exponential(1 / rate_per_ms, (samples, requests)), axis=1)

    def bounds(log_late_cost: float, count: int = samples) -> FloatArray:
        late_cost_mj = float(np.exp(log_late_cost))
        return power_bounds_w(
            GOOGLENET_P4, rate_per_ms, arrivals_ms[:count], objective, late_cost_mj
        )

    # The bound is concave in ν. A few samples find the best ν; any ν is right.
    low, high = np.log(_LATE_COSTS_MJ)
    found = minimize_scalar(
        lambda log_late_cost: -bounds(log_late_cost, max(samples // 4, 1)).mean(),
        bounds=(low, high),
        method="bounded",
        options={"xatol": 0.05},
    )
    best = bounds(found.x)
    solution = solve(GOOGLENET_P4, 1e3 * rate_per_ms, objective)
    assert GOOGLENET_P4.energy_mj is not None
    busiest_w = float((GOOGLENET_P4.energy_mj / GOOGLENET_P4.latency_ms).max())
    mean_w, error_w = float(best.mean()), float(best.std(ddof=1) / np.sqrt(samples))
    return Row(
        load,
        response_time_ms,
        solution.mean_power_w if solution.meets_sla else None,
        mean_w if mean_w - 3 * error_w <= busiest_w else float("inf"),
        error_w,
        float(np.exp(found.x)),
    )


@click.command()
@quick_option("A tenth of the requests.")
@json_option
def main(quick: bool, as_json: bool) -> None:
    """Compare the power of our policies under an SLA with a bound for any policy."""
    samples, requests = 10, 500 if quick else 5000
    rows = [bound(load, target, samples, requests) for load in LOADS for target in TARGETS_MS]
    if as_json:
        print_json({"rows": [asdict(row) for row in rows]})
        return
    print_table(
        ("load", "SLA ms", "policy W", "bound W", "error W", "gap", "late cost mJ"),
        [
            (
                row.load,
                row.response_time_ms,
                "not kept" if row.power_w is None else f"{row.power_w:.3f}",
                f"{row.bound_w:.3f}",
                f"{row.standard_error_w:.3f}",
                "" if row.power_w is None else f"{100 * (row.power_w / row.bound_w - 1):.2f}%",
                f"{row.late_cost_mj:.3g}",
            )
            for row in rows
        ],
        title=f"{PERCENTILE:g}% in time: {samples} samples of {requests:,} requests",
    )


if __name__ == "__main__":
    main()
