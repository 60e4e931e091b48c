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

import numpy as np
from numpy.typing import NDArray
from scipy.special import pdtrc

from policy.numerics.probability import poisson_table
from policy.objective import Weights
from policy.profile import Profile
from policy.values import check_at_least

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]


class TruncatedSmdp:
    """The SMDP of a profile at an arrival rate, with an overflow state.

    States are numbered 0 to `max_queue_length`, then the overflow state.

    Parameters
    ----------
    arrival_rate_per_s : float
        Below the profile's capacity.
    max_queue_length : int
        The paper's s_max; at least the maximum batch size.
    overflow_cost : float
        The paper's c_o, per millisecond in the overflow state.

    Attributes
    ----------
    states : int
        Number of states, the overflow state included.
    period_ms : ndarray of float, shape (max_batch_size + 1,)
        Mean time to the next decision epoch by action.
    cost : ndarray of float, shape (states, max_batch_size + 1)
        Mean weighted cost of the period, the overflow cost included; infinite where a batch would
        be larger than the queue.
    """

    def __init__(
        self,
        profile: Profile,
        arrival_rate_per_s: float,
        weights: Weights,
        max_queue_length: int,
        overflow_cost: float,
    ) -> None:
        rate = profile.arrivals_per_ms(arrival_rate_per_s)
        check_at_least(profile.max_batch_size, "max queue length", max_queue_length)
        check_at_least(0, "overflow cost", overflow_cost)
        self.profile = profile
        self.max_queue_length, self.states = max_queue_length, max_queue_length + 2
        latency_ms = profile.latency_ms
        lengths = np.append(np.arange(max_queue_length + 1), max_queue_length)
        sizes = np.arange(profile.max_batch_size + 1)

        self.period_ms: FloatArray = np.append(1 / rate, latency_ms)
        in_system = np.multiply.outer(lengths, self.period_ms)
        in_system[:, 1:] += rate * latency_ms**2 / 2
        self.cost: FloatArray = weights.latency_weight * in_system / rate
        energy_mj = profile.energy_mj_for_weight(weights.energy_weight)
        self.cost[:, 1:] += weights.energy_weight * energy_mj
        self.cost[-1] += overflow_cost * self.period_ms
        self.cost[sizes > lengths[:, np.newaxis]] = np.inf

        # The last column is the probability of so many arrivals that any queue overflows.
        self._means = rate * latency_ms
        arrivals = poisson_table(max_queue_length + 1, self._means)
        more = pdtrc(max_queue_length, self._means)[:, np.newaxis]
        self._arrivals = np.hstack([arrivals, more])
        # Flat indices into a table by the number left behind and the batch size.
        left = np.maximum(lengths[:, np.newaxis] - sizes[1:], 0)
        self._after_start = left * profile.max_batch_size + sizes[:-1]

    def expected_values(self, values: FloatArray) -> FloatArray:
        """Return the mean of `values` at the next decision epoch, by state and action.

        It has the shape of `cost`, and is meaningless where that is infinite.
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
        sizes = np.arange(1, self.profile.max_batch_size + 1)
        staying = np.zeros_like(self.cost)
        staying[:, 1:] = self._arrivals[sizes - 1, sizes]
        staying[-1, 0] = 1
        staying[-1, 1:] = pdtrc(sizes, self._means)
        return staying
