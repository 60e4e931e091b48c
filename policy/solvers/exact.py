r"""The optimal batching policy over queues of any length, without truncation.

The semi-Markov decision process is that of `policy.solvers.reference.truncated`, with infinitely
many states. Where the queue is long, the best action is the batch size :math:`b` of the highest
throughput, and under it the relative values solve

.. math:: h(s) = c(s, b) - g\,\tau_b + \mathrm E\,h(s - b + k), \qquad k \sim
          \mathrm{Poisson}(\lambda\tau_b) .

Up to terms that vanish geometrically the solution is :math:`h(s) = A s^2 + C s + const` with

.. math:: A = \frac{w_1 \tau_b}{2 \lambda d}, \qquad
          C = \frac{w_1 \tau_b^2 / 2 + w_2 \zeta_b - g\,\tau_b + A\,(d^2 + \lambda\tau_b)}{d},
          \qquad d = b - \lambda\tau_b ,

(insert it and compare the powers of :math:`s`). So the infinitely many equations close at a finite
state, with no overflow cost and no queue length to choose. There are three kinds of states:

- *head*, 0 to H - 1: policy iteration chooses their actions;
- *middle*, H to N - 1: they start :math:`b`. Their equations are the same in every round and are
  eliminated once, which leaves a system in the head alone;
- *far*, N on: :math:`h(s) = h(N - 1) + A (s^2 - (N - 1)^2) + C (s - N + 1)`.

When no action of the head can be improved, those of the middle and of the far states are tried. If
that gains something, weighed by how often the state is visited, the head is enlarged to hold it.
N is such that what vanishes is below 1e-15 at its weight: a term :math:`z^s` of h with
:math:`z^b = e^{\lambda\tau_b (z - 1)}, |z| < 1`, in states whose probability falls like
:math:`z_+^{-s}`, where :math:`z_+ > 1` solves the same equation.

The equations of the head, :math:`(I - P) h = c - g y`, are solved as `policy.numerics.markov`
describes: the factors that give h give the stationary distribution :math:`\pi` first, and so
:math:`g = \pi c / \pi y`.

The decision process is that of Xu, Sun, Zhou, Niu (arXiv 2301.12865); the closing is our own.
Policy iteration: Puterman, "Markov Decision Processes" (1994), section 11.4.
"""

import numpy as np
from numpy.typing import NDArray

from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError
from policy.objective import Weights
from policy.profile import Profile
from policy.solvers.closed_chain import BatchingProblem, ClosedChain
from policy.solvers.solution import Solution

_MAX_ROUNDS = 200
_MAX_EXTRA_HEAD = 32


def solve(
    profile: Profile,
    arrival_rate_per_s: float,
    weights: Weights,
    *,
    start: BatchingPolicy | None = None,
) -> Solution:
    """Find the policy of least average cost among all that know the queue length.

    Policy iteration begins at `start`: the policy of a similar problem saves rounds. If it is not
    given, that is a control limit of an economic batch size. Where batch times vary, the process
    takes their means: to follow them takes a thousand times as long, and where their standard
    deviation is half of their mean, costs at most 0.4% less.
    """
    constant = profile.with_mean_times()
    problem = BatchingProblem(constant, arrival_rate_per_s, weights)
    head = problem.max_batch_size + 1
    # Splitting a queue somewhat longer is often worthwhile: a head that holds it saves a restart.
    head = min(problem.max_head, head + min(head // 2, _MAX_EXTRA_HEAD))
    actions = _first_actions(problem, head, start)
    rounds = 0
    while True:
        closed = ClosedChain(problem, actions.size)
        while True:
            rounds += 1
            averages, values = closed.evaluate(actions)
            better = closed.improve(actions, averages, values)
            if np.array_equal(better, actions):
                break
            actions = better
            if rounds >= _MAX_ROUNDS:
                raise InfeasibleError(f"policy iteration: not solved in {_MAX_ROUNDS} rounds")
        needed = closed.head_needed(averages, values)
        if needed == actions.size:
            break
        actions = np.append(actions, np.full(needed - actions.size, problem.best))
    response_ms, above_idle_w = averages
    power_w = None
    if profile.energy_mj is not None:
        power_w = above_idle_w + (profile.idle_power_w or 0.0)
    return Solution(
        profile=profile,
        arrival_rate_per_s=arrival_rate_per_s,
        objective=weights,
        policy=BatchingPolicy.from_actions([*actions.tolist(), problem.best]),
        _averages=(response_ms, power_w) if constant is profile else None,
    )


def _first_actions(
    problem: BatchingProblem, head: int, start: BatchingPolicy | None
) -> NDArray[np.intp]:
    actions = np.minimum(np.arange(head), problem.best)
    if start is None:
        actions[: problem.economic_batch_size()] = 0
    else:
        given = np.asarray(start.actions[:head], dtype=np.intp)
        actions[: given.size] = np.minimum(given, actions[: given.size])
    return actions
