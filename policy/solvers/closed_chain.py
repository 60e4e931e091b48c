"""The equations of the exact solver: a finite system closed by what is known of long queues.

`policy.solvers.exact` derives them. `BatchingProblem` holds the numbers of the decision process and
the coefficients of the far states, `ClosedChain` the equations of the head.
"""

import cmath
import math

import numpy as np
from numpy.lib.stride_tricks import as_strided, sliding_window_view
from numpy.typing import NDArray
from scipy.special import lambertw

from policy.numerics.markov import ChainEquations, LuFactors, tail_decay
from policy.numerics.probability import poisson_table
from policy.objective import Weights
from policy.profile import Profile

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]

# Probabilities and relative terms below exp(-36) = 2e-16 are left out.
_DIGITS = 36.0
_ROUNDING = 1e-11
# A gain below this share of the average cost, weighed by how often its state is visited, is none.
_WEIGHTLESS = 1e-15


class BatchingProblem:
    """The numbers of the decision process by batch size, and the coefficients of the far states.

    Arrays over actions have shape (max_batch_size + 1,), entry 0 for waiting.

    Attributes
    ----------
    rate : float
        Arrivals per millisecond, λ.
    latency, means : ndarray of float, shape (max_batch_size,)
        Time of a batch, τ; mean number of arrivals meanwhile, λτ.
    period : ndarray of float
        Mean time to the next decision, ms.
    slope : ndarray of float
        Response cost of a period per request in the system, ms²: y / λ.
    intercept : ndarray of float, shape (2, max_batch_size + 1)
        Response and energy cost of a period at an empty queue.
    drift : float
        d: by how much a batch of the best size shortens a long queue, on average.
    square : float
        A for a latency weight of 1.
    linear : ndarray of float, shape (3,)
        C's parts, by response, energy and time.
    tail_decay, value_decay : float
        Decay per request of the probabilities of long queues, and of what the parabola leaves out
        of the relative values.
    max_head : int
        A head of this size leaves out only states that are never visited.
    """

    def __init__(self, profile: Profile, arrival_rate_per_s: float, weights: Weights) -> None:
        self.rate = rate = profile.arrivals_per_ms(arrival_rate_per_s)
        self.latency = profile.latency_ms
        self.energy = profile.energy_mj_for_weight(weights.energy_weight)
        self.weights = weights.latency_weight, weights.energy_weight
        self.max_batch_size = profile.max_batch_size
        self.best = best = profile.best_batch_size
        self.means = rate * self.latency
        self.period = np.append(1 / rate, self.latency)
        self.slope = self.period / rate
        self.intercept = np.zeros((2, self.max_batch_size + 1))
        self.intercept[0, 1:] = self.latency**2 / 2
        self.intercept[1, 1:] = self.energy

        latency, mean = self.latency[best - 1], self.means[best - 1]
        self.drift = best - mean
        self.square = latency / (2 * rate * self.drift)
        spread = self.square * (self.drift**2 + mean)
        self.linear = (
            np.array([latency**2 / 2 + spread, self.energy[best - 1], latency]) / self.drift
        )
        self.tail_decay = tail_decay(float(mean), best)
        self.value_decay = _value_decay(best, float(mean))
        self.max_head = self.max_batch_size + 1 + math.ceil(_DIGITS / self.tail_decay)

    def arrivals(self, length: int) -> FloatArray:
        """Return the probabilities of fewer than `length` arrivals during a batch, by its size."""
        table = poisson_table(length, self.means)
        return np.asarray(table / table.sum(axis=-1, keepdims=True))

    def economic_batch_size(self) -> int:
        """Guess the control limit as Wilson's economic order quantity.

        The energy that each start takes, whatever its size, is the cost of an order.
        """
        slopes = (self.energy[-1] - self.energy[0]) / max(self.max_batch_size - 1, 1)
        per_start = max(self.weights[1] * float(self.energy[0] - slopes), 0.0)
        guess = self.rate * math.sqrt(2 * per_start / self.weights[0])
        return max(1, min(self.best, round(min(guess, self.best))))

    def weigh(self, pair: tuple[float, float] | FloatArray) -> float:
        """Return the weighted sum of a mean response and a mean power."""
        return float(self.weights[0] * pair[0] + self.weights[1] * pair[1])


class ClosedChain:
    """The equations of the head, with the middle eliminated and the far states closed.

    Of the first `head` states the actions are chosen. States below `size`, N, have equations; the
    far states follow from them.
    """

    def __init__(self, problem: BatchingProblem, head: int) -> None:
        self.problem = problem
        self.head = head
        decay = problem.tail_decay + problem.value_decay
        self.size = size = head + 2 + math.ceil(_DIGITS / decay)
        largest = float(problem.means.max())
        reach = math.ceil(largest + 9 * math.sqrt(largest) + 24)
        self.reach = reach
        arrivals = problem.arrivals(max(reach, size) + 1)
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
        self.middle = LuFactors(matrix)
        self.eliminated = self.middle.solve(np.hstack([rows[:, :head], costs]))

        self.period_ms = 0.0  # mean time between two visits to the head
        self.visits = np.zeros(middle.size)  # mean visits to the middle in this time
        self.into_middle = np.zeros((head, middle.size))
        self.rows = np.zeros((head, head))
        self.costs = np.zeros((head, 3))
        self.known = np.zeros(head, dtype=np.intp)  # the actions that rows and costs are for

    def _rows(self, states: IntArray, actions: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return the transitions and costs of started batches, with the far states closed.

        The transitions, shape (n, N), lead to the states below N; the last also stands for the far
        states. The costs, shape (n, 3), are response, energy and time, what the far states add
        included.
        """
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
        """Return mean response (ms) and power (W) of a policy, and relative values, shape (N,)."""
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
        equations = ChainEquations(matrix)
        visits = equations.stationary()
        response, energy, self.period_ms = visits @ costs
        averages = response / self.period_ms, energy / self.period_ms
        weights = np.array([*problem.weights, -problem.weigh(averages)])
        unknowns = equations.relative_values(costs @ weights)
        entries = np.maximum(visits, 0) @ self.into_middle
        self.visits = self.middle.solve_transposed(entries)
        extended = np.empty(self.size)
        extended[:head] = unknowns
        extended[head:] = self.eliminated @ np.concatenate([unknowns, weights])
        return (float(averages[0]), float(averages[1])), extended

    def improve(
        self, actions: IntArray, averages: tuple[float, float], values: FloatArray
    ) -> IntArray:
        """Return the best action of each state of the head; the old one where it is as good."""
        states = np.arange(self.head)
        action_values = self._action_values(states, averages, values)
        best: IntArray = action_values.argmin(axis=1)
        gain = values[: self.head] - action_values[states, best]
        scale = _ROUNDING * (np.abs(values[: self.head]) + self.problem.weigh(averages))
        return np.where(gain > scale, best, actions)

    def head_needed(self, averages: tuple[float, float], values: FloatArray) -> int:
        """Return the head size at which no better action elsewhere would have any weight."""
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
        problem = self.problem
        weights = np.array([*problem.weights, -problem.weigh(averages)])
        return problem.weights[0] * problem.square, float(weights @ problem.linear)

    def _action_values(
        self, states: IntArray, averages: tuple[float, float], values: FloatArray
    ) -> FloatArray:
        """Return the relative values of each first action, shape (states, max_batch_size + 1).

        Infinite where the batch is larger than the queue. `states` must be successive.
        """
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


def _suffix_sums(table: FloatArray) -> FloatArray:
    sums: FloatArray = np.cumsum(table[:, ::-1], axis=1)[:, ::-1]
    return sums


def _value_decay(batch_size: int, mean: float) -> float:
    r"""Return :math:`-\ln |z_1|`, with :math:`z_1` the largest root inside the unit circle.

    The roots of :math:`z^b = e^{m (z - 1)}` are :math:`-W(-\rho e^{-\rho + 2\pi i n / b}) / \rho`,
    where :math:`\rho = m / b` and W is Lambert's function.
    """
    if batch_size == 1:
        return math.inf
    load = mean / batch_size
    turned = -load * math.exp(-load) * cmath.exp(2j * math.pi / batch_size)
    return -math.log(abs(complex(lambertw(turned, 0))) / load)
