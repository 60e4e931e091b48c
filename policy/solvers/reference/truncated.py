r"""The batching problem as a semi-Markov decision process (SMDP) with finitely many states.

Requests arrive as a Poisson process of rate :math:`\lambda`. A decision epoch is the end of a
batch, or an arrival at a free device. The state :math:`s` is the number of requests in the system;
the action :math:`a` is the batch size to start, 0 to wait. The mean time to the next epoch is

.. math:: y(s, 0) = 1/\lambda, \qquad y(s, a) = \tau_a ,

where a batch of :math:`a` takes :math:`\tau_a` ms and :math:`\zeta_a` mJ, and the state moves

.. math:: s \to s + 1 \ (a = 0), \qquad s \to s - a + k \text{ with probability }
          e^{-\lambda\tau_a} (\lambda\tau_a)^k / k! .

By Little's law the mean response time is the mean number of requests in the system over
:math:`\lambda`, so a period costs

.. math:: c(s, 0) = w_1 s / \lambda^2, \qquad
          c(s, a) = w_1 (s\tau_a + \lambda\tau_a^2 / 2) / \lambda + w_2 \zeta_a ,

and the cost per millisecond, :math:`g = w_1 \cdot` mean response (ms) :math:`+\, w_2 \cdot` mean
power (W), is to be minimal.

The paper makes the queue finite: all states beyond :math:`s_{max}` become one overflow state,
which costs and moves like :math:`s_{max}`, and costs :math:`c_o` more per millisecond. The exact
solver (`policy.solvers.exact`) needs neither; this form is the reference it is tested against.

Source: Xu, Sun, Zhou, Niu, "SMDP-Based Dynamic Batching for Efficient Inference on GPU-Based
Platforms", IEEE ICC 2023, arXiv 2301.12865: equations (4)-(9) for the process, (12) and (13) for
the overflow state.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import pdtrc

from policy.batching_policy import BatchingPolicy
from policy.errors import InvalidInputError
from policy.numerics.probability import poisson_table
from policy.objective import Weights
from policy.profile import Profile
from policy.values import check_at_least

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class TruncatedSmdp:
    """The SMDP of a profile at an arrival rate, with an overflow state.

    States are numbered 0 to `max_queue_length`, then the overflow state.

    Attributes
    ----------
    arrival_rate_per_s : float
        Below the profile's capacity.
    max_queue_length : int
        The paper's s_max; at least the maximum batch size.
    overflow_cost : float
        The paper's c_o, per millisecond in the overflow state.
    period_ms : ndarray of float, shape (max_batch_size + 1,)
        Mean time to the next decision epoch by action.
    cost : ndarray of float, shape (states, max_batch_size + 1)
        Mean weighted cost of the period, the overflow cost included; infinite where a batch would
        be larger than the queue.
    """

    profile: Profile
    arrival_rate_per_s: float
    weights: Weights
    max_queue_length: int
    overflow_cost: float
    period_ms: FloatArray = field(init=False)
    cost: FloatArray = field(init=False)
    _arrivals: FloatArray = field(init=False, repr=False)
    _after_start: IntArray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        rate = self.profile.arrivals_per_ms(self.arrival_rate_per_s)
        largest = self.profile.max_batch_size
        if self.max_queue_length < largest:
            raise InvalidInputError(
                f"max queue length: must be at least the maximum batch size {largest}, "
                f"not {self.max_queue_length}"
            )
        check_at_least(0, "overflow cost", self.overflow_cost)
        energy_mj = self.profile.energy_mj_for_weight(self.weights.energy_weight)
        latency_ms = self.profile.latency_ms
        lengths = np.append(np.arange(self.max_queue_length + 1), self.max_queue_length)
        sizes = np.arange(largest + 1)

        period = np.append(1 / rate, latency_ms)
        in_system = np.multiply.outer(lengths, period)
        in_system[:, 1:] += rate * latency_ms**2 / 2
        cost = self.weights.latency_weight * in_system / rate
        cost[:, 1:] += self.weights.energy_weight * energy_mj
        cost[-1] += self.overflow_cost * period
        cost[sizes > lengths[:, np.newaxis]] = np.inf

        object.__setattr__(self, "period_ms", period)
        object.__setattr__(self, "cost", cost)
        # The last column is the probability of so many arrivals that any queue overflows.
        arrivals = poisson_table(self.max_queue_length + 1, rate * latency_ms)
        more = pdtrc(self.max_queue_length, rate * latency_ms)[:, np.newaxis]
        object.__setattr__(self, "_arrivals", np.hstack([arrivals, more]))
        # Flat indices into a table by the number left behind and the batch size.
        left = np.maximum(lengths[:, np.newaxis] - sizes[1:], 0)
        object.__setattr__(self, "_after_start", left * largest + sizes[:-1])

    @property
    def states(self) -> int:
        """Number of states, the overflow state included."""
        return self.max_queue_length + 2

    def expected_values(self, values: FloatArray) -> FloatArray:
        """Return the mean of `values` at the next decision epoch.

        Returns
        -------
        ndarray of float, shape (states, max_batch_size + 1)
            By state and action; meaningless where `cost` is infinite.
        """
        overflow = np.full(self.states, values[-1])
        extended = np.concatenate([values[:-1], overflow])
        # Row n holds the values from n on. `sliding_window_view` is the same, but slower to make.
        windows = np.ndarray(
            (self.max_queue_length + 1, self.states), buffer=extended, strides=2 * extended.strides
        )
        after_arrivals = windows @ self._arrivals.T
        expected = np.empty_like(self.cost)
        expected[:-1, 0] = values[1:]
        expected[-1, 0] = values[-1]
        expected[:, 1:] = after_arrivals.take(self._after_start)
        return expected

    def transition_matrix(self, actions: IntArray) -> FloatArray:
        matrix = np.zeros((self.states, self.states))
        last = self.states - 1
        for state, action in enumerate(actions):
            if action == 0:
                matrix[state, min(state + 1, last)] = 1
            else:
                left = min(state, self.max_queue_length) - action
                kept = self._arrivals[action - 1, : last - left]
                matrix[state, left:last] = kept
                matrix[state, last] = self._arrivals[action - 1, last - left :].sum()
        return matrix

    def staying_probabilities(self) -> FloatArray:
        """Return the probability of staying in a state, shape (states, max_batch_size + 1)."""
        means = self.arrival_rate_per_s / 1e3 * self.profile.latency_ms
        sizes = np.arange(1, self.profile.max_batch_size + 1)
        staying = np.zeros_like(self.cost)
        staying[:, 1:] = self._arrivals[sizes - 1, sizes]
        staying[-1, 0] = 1
        staying[-1, 1:] = pdtrc(sizes, means)
        return staying

    def batching_policy(self, actions: IntArray) -> BatchingPolicy:
        return BatchingPolicy.from_actions(actions[:-1].tolist())


@dataclass(frozen=True, eq=False)
class TruncatedSolution:
    """An optimal policy of the truncated SMDP.

    Attributes
    ----------
    actions : ndarray of int, shape (states,)
        Batch size to start by state, the overflow state last; 0 is to wait.
    average_cost : float
        Cost per millisecond, the overflow cost included.
    rounds : int
        Sweeps of value iteration, or policies tried by policy iteration.
    """

    actions: IntArray
    average_cost: float
    rounds: int
