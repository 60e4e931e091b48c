r"""The optimal batching policy over queues of any length, without truncation.

The SMDP is that of `policy.solvers.reference.truncated`. Where the queue is long, the best action is the batch size
:math:`b` of the highest throughput, and under it the relative values solve

.. math:: h(s) = c(s, b) - g\,\tau_b + \mathrm E\,h(s - b + k), \qquad k \sim
          \mathrm{Poisson}(\lambda\tau_b) .

Up to terms that vanish geometrically its solution is :math:`h(s) = A s^2 + C s + const` with

.. math:: A = \frac{w_1 \tau_b}{2 \lambda d}, \qquad
          C = \frac{w_1 \tau_b^2 / 2 + w_2 \zeta_b - g\,\tau_b + A\,(d^2 + \lambda\tau_b)}{d},
          \qquad d = b - \lambda\tau_b ,

(put it in and compare the powers of :math:`s`), so that the infinitely many equations close at a
finite state: no overflow cost, and no queue length to choose. States are of three kinds:

- *head*, 0 to H - 1: policy iteration chooses their actions;
- *middle*, H to N - 1: they start :math:`b`. Their equations are the same in every round and are
  eliminated once, which leaves a system in the head alone;
- *far*, N on: :math:`h(s) = h(N - 1) + A (s^2 - (N - 1)^2) + C (s - N + 1)`.

When no action of the head can be bettered, those of the middle and of the far states are tried;
where that gains something, weighed by how often the state is visited, the head is made to hold
it. N is such that what vanishes is below 1e-15 at its weight: a term :math:`z^s` of h with
:math:`z^b = e^{\lambda\tau_b (z - 1)}, |z| < 1`, in states whose probability falls like
:math:`z_+^{-s}`, where :math:`z_+ > 1` solves the same equation.

The equations of the head, :math:`(I - P) h = c - g y`, are solved as
:math:`(I - P + e u^T) h = c - g y` with u uniform, which fixes :math:`u^T h = 0` and is never
singular; the same factors give the chain's stationary distribution
:math:`\pi^T = u^T (I - P + e u^T)^{-1}` and so :math:`g = \pi c / \pi y` before h is asked for. To
measure h from a fixed state instead, as is usual, loses all digits where that state is hardly
ever visited, as state 0 under load.

The closing is our own; the SMDP is that of arXiv 2501.02181. Policy iteration: Puterman, "Markov
Decision Processes" (1994), section 11.4. The nonsingular form: Paige, Styan, Wachter, "Computation
of the stationary distribution of a Markov chain", J. Stat. Comput. Simul. 4 (1975).
"""

import cmath
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import as_strided, sliding_window_view
from scipy.linalg.lapack import dgetrf, dgetrs
from scipy.special import lambertw

from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError
from policy.objective import Weights
from policy.profile import Profile
from policy.solvers.reference.truncated import (
    FloatArray,
    IntArray,
    energy_for,
    poisson_probabilities,
)

_DIGITS = 36.0  # exp(-36) = 2e-16: what falls below this is not there
_MAX_ROUNDS = 200
_ROUNDING = 1e-11
_WEIGHTLESS = 1e-15
_SPLIT = 32


@dataclass(frozen=True)
class ExactSolution:
    """A policy and what it costs.

    Attributes
    ----------
    policy : BatchingPolicy
        The optimal one. Its max wait is that of the weights, and no part of the costs below.
    average_cost : float
        Latency weight x mean response (ms) + energy weight x mean power (W).
    mean_response_ms : float
    mean_power_w : float or None
        None where the profile knows no energy.
    rounds : int
        Policies that were evaluated.
    """

    policy: BatchingPolicy
    average_cost: float
    mean_response_ms: float
    mean_power_w: float | None
    rounds: int


def solve(
    profile: Profile,
    arrival_rate_per_s: float,
    weights: Weights,
    *,
    start: Sequence[int] | None = None,
) -> ExactSolution:
    """Find the policy of least average cost among all that know the queue length.

    Parameters
    ----------
    profile : Profile
    arrival_rate_per_s : float
        Below the profile's capacity.
    weights : Weights
    start : sequence of int, optional
        Actions to set out from, as in `BatchingPolicy.actions`: those of a like problem save
        rounds. Batches of an economic size if not given.

    Returns
    -------
    ExactSolution

    Raises
    ------
    InvalidInputError, InfeasibleError
        The arrival rate is not above 0, or not below the capacity; energy has a weight but the
        profile does not know it.
    """
    problem = _Problem(profile, arrival_rate_per_s, weights)
    head = problem.max_batch_size + 1
    # Somewhat longer queues are often worth a split: to hold them at once saves a second solution.
    head = min(problem.head_limit, head + min(head // 2, _SPLIT))
    actions = np.minimum(np.arange(head), problem.best)
    if start is None:
        actions[: problem.economic_batch_size()] = 0
    else:
        given = np.asarray(start[:head], dtype=np.intp)
        actions[: given.size] = np.minimum(given, actions[: given.size])
    rounds = 0
    while True:
        closed = _ClosedChain(problem, actions.size)
        while True:
            rounds += 1
            averages, values = closed.evaluate(actions)
            better = closed.improve(actions, averages, values)
            if np.array_equal(better, actions):
                break
            actions = better
            if rounds >= _MAX_ROUNDS:
                raise InfeasibleError(f"policy iteration: {_MAX_ROUNDS} rounds did not suffice")
        needed = closed.head_needed(averages, values)
        if needed == actions.size:
            break
        actions = np.append(actions, np.full(needed - actions.size, problem.best))
    response, energy = averages
    return ExactSolution(
        policy=BatchingPolicy.from_actions(
            [*actions.tolist(), problem.best], max_wait_ms=weights.max_wait_ms
        ),
        average_cost=problem.weigh(averages),
        mean_response_ms=response,
        mean_power_w=None if profile.energy_mj is None else energy,
        rounds=rounds,
    )


class _Problem:
    """The SMDP's numbers, by batch size, and the coefficients of the far states."""

    def __init__(self, profile: Profile, arrival_rate_per_s: float, weights: Weights) -> None:
        self.rate = rate = profile.arrivals_per_ms(arrival_rate_per_s)
        self.latency = profile.latency_ms
        self.energy = energy_for(profile, weights)
        self.weights = weights.latency_weight, weights.energy_weight
        self.max_batch_size = profile.max_batch_size
        self.best = best = profile.best_batch_size
        self.means = rate * self.latency
        self.period = np.append(1 / rate, self.latency)
        # Costs of a period are intercept + slope x queue length, in response and in energy.
        self.slope = self.period / rate
        self.intercept = np.zeros((2, self.max_batch_size + 1))
        self.intercept[0, 1:] = self.latency**2 / 2
        self.intercept[1, 1:] = self.energy

        latency, mean = self.latency[best - 1], self.means[best - 1]
        self.drift = best - mean
        self.square = latency / (2 * rate * self.drift)
        spread = self.square * (self.drift**2 + mean)
        # Per request in the queue, before the average cost's part: response, energy, time.
        self.linear = (
            np.array([latency**2 / 2 + spread, self.energy[best - 1], latency]) / self.drift
        )
        self.tail_decay, self.value_decay = _decays(best, mean)
        # Beyond this the states have no weight, whatever they do.
        self.head_limit = self.max_batch_size + 1 + math.ceil(_DIGITS / self.tail_decay)

    def economic_batch_size(self) -> int:
        """Guess the control limit: Wilson's economic order quantity, a start's energy the order."""
        slopes = (self.energy[-1] - self.energy[0]) / max(self.max_batch_size - 1, 1)
        per_start = max(self.weights[1] * float(self.energy[0] - slopes), 0.0)
        guess = self.rate * math.sqrt(2 * per_start / self.weights[0])
        return max(1, min(self.best, round(min(guess, self.best))))

    def weigh(self, pair: tuple[float, float] | FloatArray) -> float:
        return float(self.weights[0] * pair[0] + self.weights[1] * pair[1])


class _ClosedChain:
    """The equations of the head, with the middle eliminated and the far states closed."""

    def __init__(self, problem: _Problem, head: int) -> None:
        self.problem = problem
        self.head = head
        decay = problem.tail_decay + problem.value_decay
        self.size = size = head + 2 + math.ceil(_DIGITS / decay)
        largest = float(problem.means.max())
        reach = math.ceil(largest + 9 * math.sqrt(largest) + 24)
        self.reach = reach
        arrivals = poisson_probabilities(problem.means, max(reach, size) + 1)
        arrivals /= arrivals.sum(axis=1, keepdims=True)
        self.arrivals = arrivals[:, :reach]
        # Moments of the arrivals beyond m, by action and m: of order 0, 1 and 2 about m - 1.
        beyond = _suffix_sums(arrivals)
        first = _suffix_sums(beyond)
        self.moments = beyond, first, 2 * _suffix_sums(first) - first
        padded = np.concatenate([np.zeros((problem.max_batch_size, size)), arrivals], axis=1)
        self.shifted = sliding_window_view(padded, size, axis=1)

        middle = np.arange(head, size)
        rows, costs = self._rows(middle, np.full(middle.size, problem.best))
        matrix = -rows[:, head:]
        matrix[np.diag_indices(middle.size)] += 1
        self.middle_factors = _factor(matrix)
        self.eliminated = _solve(self.middle_factors, np.hstack([rows[:, :head], costs]))

        self.period_ms = 0.0  # mean time between two visits to the head
        self.visits = np.zeros(middle.size)  # mean visits to the middle in this time
        self.into_middle = np.zeros((head, middle.size))
        self.rows = np.zeros((head, head))
        self.costs = np.zeros((head, 3))
        self.known = np.zeros(head, dtype=np.intp)  # the actions that rows and costs are for

    def _rows(self, states: IntArray, actions: IntArray) -> tuple[FloatArray, FloatArray]:
        """Transitions to states below N, and costs (response, energy, time), of started batches."""
        problem = self.problem
        left = states - actions
        rows = self.shifted[actions - 1, self.size - left]
        mass, first, second = (m[actions - 1, self.size - left] for m in self.moments)
        rows[:, -1] += mass
        costs = first[:, np.newaxis] * problem.linear
        costs[:, 0] += problem.square * (2 * (self.size - 1) * first + second)
        costs[:, 0] += problem.slope[actions] * states
        costs[:, :2] += problem.intercept[:, actions].T
        costs[:, 2] += problem.period[actions]
        return rows, costs

    def evaluate(self, actions: IntArray) -> tuple[tuple[float, float], FloatArray]:
        """Mean response and power of a policy, and the relative values of states below N."""
        problem, head = self.problem, self.head
        states = np.arange(head)
        changed = np.flatnonzero((actions > 0) & (actions != self.known))
        if changed.size:
            rows, costs = self._rows(changed, actions[changed])
            self.into_middle[changed] = rows[:, head:]
            reduced = rows[:, head:] @ self.eliminated
            self.rows[changed] = rows[:, :head] + reduced[:, :head]
            self.costs[changed] = costs + reduced[:, head:]
            self.known[changed] = actions[changed]
        waits = np.flatnonzero(actions == 0)
        matrix = -self.rows
        matrix[waits] = 0
        costs = self.costs.copy()
        costs[waits] = 0
        self.into_middle[waits] = 0
        self.known[waits] = 0
        costs[waits, 0] = problem.slope[0] * waits
        costs[waits, 2] = problem.period[0]
        if waits[-1] == head - 1:  # and so enters the middle
            matrix[-1] = -self.eliminated[0, :head]
            costs[-1] += self.eliminated[0, head:]
            self.into_middle[-1, 0] = 1
            waits = waits[:-1]
        matrix[waits, waits + 1] = -1

        matrix[states, states] += 1
        matrix += 1 / head
        factors = _factor(matrix)
        visits = _solve(factors, np.full(head, 1 / head), transposed=True)
        response, energy, self.period_ms = visits @ costs
        averages = response / self.period_ms, energy / self.period_ms
        weights = np.array([*problem.weights, -problem.weigh(averages)])
        unknowns = _solve(factors, costs @ weights)
        entries = np.maximum(visits, 0) @ self.into_middle
        self.visits = _solve(self.middle_factors, entries, transposed=True)
        extended = np.empty(self.size)
        extended[:head] = unknowns
        extended[head:] = self.eliminated @ np.concatenate([unknowns, weights])
        return (float(averages[0]), float(averages[1])), extended

    def improve(
        self, actions: IntArray, averages: tuple[float, float], values: FloatArray
    ) -> IntArray:
        """Give each state of the head its best action; the old one where it is as good."""
        states = np.arange(self.head)
        action_values = self._action_values(states, averages, values)
        best: IntArray = action_values.argmin(axis=1)
        gain = values[: self.head] - action_values[states, best]
        scale = _ROUNDING * (np.abs(values[: self.head]) + self.problem.weigh(averages))
        return np.where(gain > scale, best, actions)

    def head_needed(self, averages: tuple[float, float], values: FloatArray) -> int:
        """States that the head must hold so that a better action elsewhere has no weight."""
        problem = self.problem
        average = problem.weigh(averages)
        enough = _WEIGHTLESS * average * self.period_ms

        states = np.arange(self.head, self.size)
        gains = values[states] - self._action_values(states, averages, values).min(axis=1)
        real = gains > _ROUNDING * (np.abs(values[states]) + average)
        if self.visits @ np.where(real, gains, 0) > enough:
            needed = int(states[real][-1]) + 1
        else:
            needed = self.head
        # In the far states the loss by each action is a line over the queue length.
        square, linear = self._far(averages)
        drift = np.append(-1.0, np.arange(1, problem.max_batch_size + 1) - problem.means)
        variance = np.append(0.0, problem.means)
        slope = problem.weights[0] * problem.slope - 2 * square * drift
        at_zero = (
            problem.weights[0] * problem.intercept[0]
            + problem.weights[1] * problem.intercept[1]
            - average * problem.period
            + square * (drift**2 + variance)
            - linear * drift
        )
        loss = at_zero + slope * (self.size + problem.max_batch_size)
        wanted = (loss < -_ROUNDING * abs(values[-1])) & (slope > 0)
        far_visits = float(self.visits[-1]) / -math.expm1(-problem.tail_decay)
        if wanted.any() and -far_visits * loss[wanted].min() > enough:
            needed = math.ceil(float(np.max(-at_zero[wanted] / slope[wanted]))) + 1
        if needed > self.head:
            needed += problem.max_batch_size // 2
        return min(needed, 2 * self.head + problem.max_batch_size)

    def _far(self, averages: tuple[float, float]) -> tuple[float, float]:
        """Give A and C of the far states."""
        problem = self.problem
        weights = np.array([*problem.weights, -problem.weigh(averages)])
        return problem.weights[0] * problem.square, float(weights @ problem.linear)

    def _action_values(
        self, states: IntArray, averages: tuple[float, float], values: FloatArray
    ) -> FloatArray:
        """Cost to come by state and action; infinite where the batch is larger than the queue."""
        problem = self.problem
        largest = problem.max_batch_size
        square, linear = self._far(averages)
        lowest = max(int(states[0]) - largest, 0)
        last = int(states[-1])
        far = np.arange(self.size, last + self.reach + 1)
        extended = np.concatenate(
            [
                values,
                values[-1]
                + square * (far**2 - (self.size - 1) ** 2)
                + linear * (far - self.size + 1),
            ]
        )
        windows = sliding_window_view(extended, self.reach)[lowest : last + 1]
        # Rows are what a start leaves over, from -B on: no start leaves less than none.
        after_start = np.full((largest + len(windows), largest), np.inf)
        np.matmul(windows, self.arrivals.T, out=after_start[largest:])
        cost = problem.weights[0] * problem.intercept[0] + problem.weights[1] * problem.intercept[1]
        cost = cost - problem.weigh(averages) * problem.period
        action_values: FloatArray = (
            np.multiply.outer(states, problem.weights[0] * problem.slope) + cost
        )
        action_values[:, 0] += extended[states + 1]
        # Down a column of this view the queue grows by one; along a row the batch does, and so
        # what is left over shrinks by one.
        by_batch_size = as_strided(
            after_start[int(states[0]) - lowest + largest - 1 :],
            shape=(states.size, largest),
            strides=(after_start.strides[0], after_start.strides[1] - after_start.strides[0]),
            writeable=False,
        )
        action_values[:, 1:] += by_batch_size
        return action_values


def _factor(matrix: FloatArray) -> tuple[FloatArray, IntArray]:
    """Factor the transpose of a matrix: where the rows are diagonally dominant, none is swapped."""
    factors, pivots, _ = dgetrf(matrix.T, overwrite_a=True)
    return factors, pivots


def _solve(
    factors: tuple[FloatArray, IntArray], right: FloatArray, *, transposed: bool = False
) -> FloatArray:
    """Solve with a factored matrix; `transposed` with the transpose of it."""
    solution: FloatArray = dgetrs(*factors, right, trans=0 if transposed else 1)[0]
    return np.ascontiguousarray(solution)


def _suffix_sums(table: FloatArray) -> FloatArray:
    sums: FloatArray = np.cumsum(table[:, ::-1], axis=1)[:, ::-1]
    return sums


def _decays(batch_size: int, mean: float) -> tuple[float, float]:
    r"""Solve :math:`z^b = e^{m (z - 1)}` for its root above 1 and the greatest below.

    With :math:`\rho = m / b` the roots are :math:`-W(-\rho e^{-\rho + 2\pi i n / b}) / \rho`, where
    W is Lambert's function.

    Returns
    -------
    tail, values : float
        :math:`\ln z_+`, and :math:`-\ln |z_1|`.
    """
    load = mean / batch_size
    seed = -load * math.exp(-load)
    above = -complex(lambertw(seed, -1)).real / load
    turned = seed * cmath.exp(2j * math.pi / batch_size)
    below = abs(complex(lambertw(turned, 0))) / load
    return math.log(above), -math.log(below) if batch_size > 1 else math.inf
