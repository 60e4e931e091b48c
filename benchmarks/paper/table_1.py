"""Table I of the SMDP paper (arXiv 2301.12865), computed with the paper's own method.

For each overflow cost, find the shortest queue at which the overflow state hardly counts. A queue
is solved by relative value iteration that stops after 10,000 sweeps, finished or not. That limit
decides the last two rows: with a small overflow cost, waiting for ever is only just worse than
serving, and 10,000 sweeps look too little ahead to see it unless the queue is longer.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import product

from benchmarks.inputs import GOOGLENET_P4
from benchmarks.paper import published
from benchmarks.paper.published import TableRow
from policy.errors import InfeasibleError
from policy.objective import Weights
from policy.optimization import solve
from policy.profile import Profile
from policy.solvers.reference.methods import MAX_SWEEPS, TOLERANCE, value_iteration
from policy.solvers.reference.truncated import TruncatedSmdp
from sojourn.output import print_table, say

#: By how much the printed coefficients may be rounded: latency and energy, per request and fixed.
_HALF_DIGITS = ((5e-5, 5e-4), (5e-3, 5e-3))


def truncated_problem(max_queue_length: int, overflow_cost: float) -> TruncatedSmdp:
    """Return Table I's problem: load 0.9, both weights 1."""
    rate_per_s = published.TABLE_1_LOAD * GOOGLENET_P4.capacity_per_s
    return TruncatedSmdp(GOOGLENET_P4, rate_per_s, Weights(1, 1), max_queue_length, overflow_cost)


def row_at(max_queue_length: int, overflow_cost: float) -> TableRow:
    """Solve one queue length as the paper does, and evaluate the policy that comes out."""
    found = value_iteration(truncated_problem(max_queue_length, overflow_cost))
    space = published.MAX_BATCH_SIZE * max_queue_length
    return TableRow(
        overflow_cost,
        max_queue_length,
        found.rounds,
        space,
        float(found.rounds * space * max_queue_length),
        found.overflow_cost_per_ms,
        found.average_cost,
    )


def row(overflow_cost: float, lengths: Iterable[int]) -> TableRow:
    """Return the row of the first of `lengths` that suffices."""
    for length in lengths:
        found = row_at(length, overflow_cost)
        if found.overflow_cost_per_ms < TOLERANCE:
            return found
    raise InfeasibleError(f"overflow cost {overflow_cost:g}: no queue length tried suffices")


def rows(*, quick: bool) -> Iterator[TableRow]:
    """Compute Table I.

    A full run tries every length from the largest batch on. A quick run starts at the printed
    length, or one below it where that takes few sweeps, and leaves the last row out.
    """
    shortest, longest = published.QUEUE_LENGTHS
    for printed in published.TABLE_1[: -1 if quick else None]:
        first = shortest
        if quick:
            limited = printed.sweeps == MAX_SWEEPS
            first = printed.max_queue_length - (0 if limited else 1)
        yield row(printed.overflow_cost, range(first, longest + 1))


def exact_cost(profile: Profile = GOOGLENET_P4) -> float:
    """Return the optimal average cost of Table I's problem over queues of any length."""
    rate_per_s = published.TABLE_1_LOAD * profile.capacity_per_s
    return solve(profile, rate_per_s, Weights(1, 1)).average_cost


def cost_range() -> tuple[float, float]:
    """Return the least and greatest optimal cost under coefficients that round as printed."""
    costs = []
    for signs in product((-1, 1), repeat=4):
        (slope, fixed), (energy_slope, energy_fixed) = _HALF_DIGITS
        costs.append(
            exact_cost(
                published.linear_profile(
                    (0.3051 + signs[0] * slope, 1.052 + signs[1] * fixed),
                    (19.90 + signs[2] * energy_slope, 19.60 + signs[3] * energy_fixed),
                )
            )
        )
    return min(costs), max(costs)


def print_table_1(found: Sequence[TableRow]) -> None:
    """Print each number of Table I and ours, for as many rows as were computed."""
    print_table(
        ("c_o", "", "s_max", "sweeps", "space", "time", "Delta", "g"),
        [
            line
            for printed, ours in zip(published.TABLE_1, found, strict=False)
            for line in (
                (f"{printed.overflow_cost:g}", "paper", *_numbers(printed)),
                ("", "ours", *_numbers(ours)),
            )
        ],
        title="Table I",
    )
    low, high = cost_range()
    say(f"Exact average cost, any queue length: {exact_cost():.10f}")
    say(f"The same with any coefficients that round as printed: {low:.3f} to {high:.3f}")


def _numbers(row: TableRow) -> tuple[object, ...]:
    costs = f"{row.overflow_cost_per_ms:.2e}", f"{row.average_cost:.4f}"
    return row.max_queue_length, row.sweeps, row.space, f"{row.time:.2e}", *costs
