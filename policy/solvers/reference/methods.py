r"""Two textbook solvers of the truncated decision process, and the paper's choice of the queue.

*Policy iteration* evaluates a policy, improves it, and repeats. Under a policy :math:`\pi` the
average cost :math:`g` and the relative values :math:`h` solve

.. math:: h(s) + g\,y(s, \pi(s)) = c(s, \pi(s)) + \sum_j m(j | s, \pi(s))\, h(j),
          \qquad h(0) = 0 .

`policy.numerics.markov` has the linear algebra. Source: Puterman, "Markov Decision Processes"
(1994), sections 8.6 and 11.4.

*Relative value iteration* (RVI) is the paper's method. The process becomes a discrete-time chain
with the same average cost and the same optimal policies:

.. math:: \tilde c(s, a) = \hat c(s, a) / y(s, a), \qquad
          \tilde m(j | s, a) = \delta_{sj} + \eta\,(\hat m(j | s, a) - \delta_{sj}) / y(s, a)

with a step :math:`\eta` small enough that all probabilities stay non-negative:
:math:`0 < \eta < y(s, a) / (1 - \hat m(s | s, a))`. Then

.. math:: J_{n+1}(s) = \min_a \{\tilde c(s, a) + \sum_j \tilde m(j | s, a)\, h_n(j)\}, \qquad
          h_{n+1} = J_{n+1} - J_{n+1}(0)

until the span of :math:`J_{n+1} - h_n` is below :math:`\epsilon`; its least and greatest entries
bound the average cost.

The paper lengthens the queue until its end hardly counts: the truncated process is acceptable with
the tolerance δ if less than δ of its average cost, Δ, is paid in the overflow state.

Source: Xu, Sun, Zhou, Niu, "SMDP-Based Dynamic Batching for Efficient Inference on
GPU-Based Platforms", IEEE ICC 2023, arXiv 2301.12865, section IV, equations (15) and (17)-(22).
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError
from policy.numerics.markov import ChainEquations
from policy.objective import Weights
from policy.profile import Profile
from policy.solvers.reference.truncated import FloatArray, IntArray, TruncatedSmdp

#: The tolerance δ, and the span ε and the number of sweeps after which value iteration ends.
TOLERANCE, SPAN, MAX_SWEEPS = 1e-3, 0.01, 10_000
#: With the largest step allowed, some state is always left at once, so the chain may be periodic.
_STEP_SHARE = 0.99
_MAX_ROUNDS = 1000
#: The factor by which a queue that does not suffice grows, and its greatest length.
_GROWTH, _LONGEST = 1.05, 1024


@dataclass(frozen=True, eq=False)
class TruncatedSolution:
    """A policy of the truncated process, found in so many sweeps or rounds.

    `actions`, shape (states,), are the batch sizes to start by state, the overflow state last; 0 is
    to wait.
    """

    smdp: TruncatedSmdp
    actions: IntArray
    rounds: int

    @property
    def policy(self) -> BatchingPolicy | None:
        """The policy; None if it is never to serve a full queue."""
        if not self.actions[-1]:
            return None
        return BatchingPolicy.from_actions(self.actions[:-1].tolist())

    @cached_property
    def average_cost(self) -> float:
        """Cost per millisecond, the overflow cost included."""
        return evaluate(self.smdp, self.actions)[0]

    @cached_property
    def overflow_cost_per_ms(self) -> float:
        """Δ: the part of the average cost that is paid in the overflow state."""
        cost = np.zeros(self.smdp.states)
        cost[-1] = self.smdp.cost[-1, self.actions[-1]]
        return evaluate(self.smdp, self.actions, cost)[0]


def solve_within(
    profile: Profile,
    arrival_rate_per_s: float,
    weights: Weights,
    method: Literal["rvi", "pi"],
    overflow_cost: float,
    max_queue_length: int | None = None,
) -> TruncatedSolution:
    """Solve the queue of a length, or the first that suffices from the largest batch on.

    `InfeasibleError`: the queue does not suffice, or none does, as the overflow cost is too low.
    """
    solve = policy_iteration if method == "pi" else value_iteration
    length = max_queue_length or profile.max_batch_size
    while True:
        found = solve(TruncatedSmdp(profile, arrival_rate_per_s, weights, length, overflow_cost))
        if found.policy is not None and found.overflow_cost_per_ms < TOLERANCE:
            return found
        if max_queue_length is not None or length >= _LONGEST:
            raise InfeasibleError(
                f"a queue of {length} does not suffice at an overflow cost of {overflow_cost:g}: "
                f"its overflow state has {found.overflow_cost_per_ms:.2g} of the average cost, not "
                f"below {TOLERANCE:g}; use a longer queue or another overflow cost"
            )
        length = min(_LONGEST, math.ceil(_GROWTH * (length + 1)))


def policy_iteration(smdp: TruncatedSmdp) -> TruncatedSolution:
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
            return TruncatedSolution(smdp, actions, policies)
        actions = np.where(better, best, actions)
    raise InfeasibleError(f"policy iteration: not solved in {_MAX_ROUNDS} rounds")


def value_iteration(
    smdp: TruncatedSmdp, span: float = SPAN, max_sweeps: int = MAX_SWEEPS
) -> TruncatedSolution:
    """Solve by relative value iteration until the average cost is known to within `span`.

    As in the paper, what the last sweep finds is taken if they do not suffice.
    """
    step = _STEP_SHARE * _largest_step_ms(smdp)
    cost_rate = smdp.cost / smdp.period_ms
    share = step / smdp.period_ms
    states = np.arange(smdp.states)
    values = np.zeros(smdp.states)
    sweeps = 0
    while True:
        sweeps += 1
        expected = smdp.expected_values(values)
        action_values = cost_rate + share * (expected - values[:, np.newaxis])
        actions: IntArray = action_values.argmin(axis=1)
        change = action_values[states, actions]
        values = values + change
        values -= values[0]
        if change.max() - change.min() < span or sweeps >= max_sweeps:
            return TruncatedSolution(smdp, actions, sweeps)


def _largest_step_ms(smdp: TruncatedSmdp) -> float:
    """Return the upper bound of the discretization step, equation (19) of arXiv 2301.12865."""
    staying = smdp.staying_probabilities()
    leaves = np.isfinite(smdp.cost) & (staying < 1)
    bound = np.broadcast_to(smdp.period_ms, smdp.cost.shape)[leaves] / (1 - staying[leaves])
    return float(bound.min())


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
