r"""Policy iteration on the truncated decision process: evaluate a policy, improve it, repeat.

Under a policy :math:`\pi` the average cost :math:`g` and the relative values :math:`h` solve

.. math:: h(s) + g\,y(s, \pi(s)) = c(s, \pi(s)) + \sum_j m(j | s, \pi(s))\, h(j),
          \qquad h(0) = 0 .

`policy.numerics.markov` has the linear algebra. Source: Puterman, "Markov Decision Processes"
(1994), sections 8.6 and 11.4.
"""

import numpy as np

from policy.errors import InfeasibleError
from policy.numerics.markov import ChainEquations
from policy.solvers.reference.truncated import (
    FloatArray,
    IntArray,
    TruncatedSmdp,
    TruncatedSolution,
)

_MAX_ROUNDS = 1000


def solve(smdp: TruncatedSmdp) -> TruncatedSolution:
    """Solve by policy iteration, starting from the work-conserving policy."""
    states = np.arange(smdp.states)
    lengths = np.minimum(states, smdp.max_queue_length)
    actions: IntArray = np.minimum(lengths, smdp.profile.best_batch_size)
    for policies in range(1, _MAX_ROUNDS + 1):
        average_cost, values = evaluate(smdp, actions)
        action_values = smdp.cost - average_cost * smdp.period_ms + smdp.expected_values(values)
        best: IntArray = action_values.argmin(axis=1)
        # Without a margin for rounding, two equally good actions could alternate for ever.
        gain = action_values[states, actions] - action_values[states, best]
        better = gain > 1e-10 * (1 + np.abs(values))
        if not better.any():
            return TruncatedSolution(actions, average_cost, policies)
        actions = np.where(better, best, actions)
    raise InfeasibleError(f"policy iteration: not solved in {_MAX_ROUNDS} rounds")


def evaluate(
    smdp: TruncatedSmdp, actions: IntArray, cost: FloatArray | None = None
) -> tuple[float, FloatArray]:
    """Compute the average cost and the relative values of a policy.

    A policy that waits in the overflow state never leaves it again, so its average cost is that of
    waiting there. The stationary probabilities cannot tell: where the overflow state is reached
    once in 1e14 periods, rounding decides.
    """
    if cost is None:
        cost = smdp.cost[np.arange(smdp.states), actions]
    period = smdp.period_ms[actions]
    equations = ChainEquations(np.eye(smdp.states) - smdp.transition_matrix(actions))
    if actions[-1] == 0:
        average_cost = float(cost[-1]) / float(period[-1])
    else:
        visits = equations.stationary()
        average_cost = float(visits @ cost) / float(visits @ period)
    values = equations.relative_values(cost - average_cost * period)
    return average_cost, values - values[0]


def overflow_cost_per_ms(smdp: TruncatedSmdp, actions: IntArray) -> float:
    """Return the part of a policy's average cost that is paid in the overflow state.

    This is the criterion Δ of arXiv 2301.12865, equation (15): below a tolerance (0.001 there), the
    queue is long enough.
    """
    cost = np.zeros(smdp.states)
    cost[-1] = smdp.cost[-1, actions[-1]]
    return evaluate(smdp, actions, cost)[0]
