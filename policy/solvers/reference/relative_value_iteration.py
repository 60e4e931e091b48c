r"""Relative value iteration (RVI) on the truncated decision process, as in the paper.

It becomes a discrete-time chain with the same average cost and the same optimal policies:

.. math:: \tilde c(s, a) = \hat c(s, a) / y(s, a), \qquad
          \tilde m(j | s, a) = \delta_{sj} + \eta\,(\hat m(j | s, a) - \delta_{sj}) / y(s, a)

with a step :math:`\eta` small enough that all probabilities stay non-negative:
:math:`0 < \eta < y(s, a) / (1 - \hat m(s | s, a))`. Then

.. math:: J_{n+1}(s) = \min_a \{\tilde c(s, a) + \sum_j \tilde m(j | s, a)\, h_n(j)\}, \qquad
          h_{n+1} = J_{n+1} - J_{n+1}(0)

until the span of :math:`J_{n+1} - h_n` is below :math:`\epsilon`; its least and greatest entries
bound the average cost.

Source: Xu, Sun, Zhou, Niu, "SMDP-Based Dynamic Batching for Efficient Inference on
GPU-Based Platforms", IEEE ICC 2023, arXiv 2301.12865, equations (17)-(22).
"""

import numpy as np

from policy.errors import InfeasibleError
from policy.solvers.reference.truncated import IntArray, TruncatedSmdp, TruncatedSolution

# With the largest step allowed, some state is always left at once, so the chain may be periodic.
_STEP_SHARE = 0.99


def solve(
    smdp: TruncatedSmdp,
    *,
    span: float = 0.01,
    max_sweeps: int = 1_000_000,
    must_converge: bool = True,
) -> TruncatedSolution:
    """Solve by relative value iteration.

    Parameters
    ----------
    span : float
        The paper's epsilon: the average cost is known to within this.
    must_converge : bool
        If false, return the policy of the last sweep instead of giving up, as the paper does. Its
        `average_cost` is then the middle of bounds that may still be far apart.
    """
    step = _STEP_SHARE * largest_step_ms(smdp)
    cost_rate = smdp.cost / smdp.period_ms
    share = step / smdp.period_ms
    states = np.arange(smdp.states)
    values = np.zeros(smdp.states)
    for sweep in range(1, max_sweeps + 1):
        expected = smdp.expected_values(values)
        action_values = cost_rate + share * (expected - values[:, np.newaxis])
        actions: IntArray = action_values.argmin(axis=1)
        change = action_values[states, actions]
        low, high = change.min(), change.max()
        values = values + change
        values -= values[0]
        if high - low < span or (sweep == max_sweeps and not must_converge):
            return TruncatedSolution(actions, float(low + high) / 2, rounds=sweep)
    raise InfeasibleError(f"relative value iteration: not solved in {max_sweeps} sweeps")


def largest_step_ms(smdp: TruncatedSmdp) -> float:
    """Return the upper bound of the discretization step, equation (19) of arXiv 2301.12865."""
    staying = smdp.staying_probabilities()
    leaves = np.isfinite(smdp.cost) & (staying < 1)
    bound = np.broadcast_to(smdp.period_ms, smdp.cost.shape)[leaves] / (1 - staying[leaves])
    return float(bound.min())
