r"""The linear algebra of Markov chains: stationary probabilities, relative values, the tail.

`ChainEquations` serves the decision processes: both the stationary probabilities and the relative
values of a chain :math:`P` follow from one matrix that is never singular,

.. math:: M = I - P + e u^T ,

with :math:`e` all ones and :math:`u` uniform. Since :math:`(I - P)\,e = 0`,
:math:`\pi^T = u^T M^{-1}` solves :math:`\pi^T (I - P) = 0,\ \pi^T e = 1`; and where
:math:`\pi^T r = 0`, :math:`x = M^{-1} r` solves :math:`(I - P)\,x = r,\ u^T x = 0`. Fixing
:math:`x` at one state instead, as is usual, loses all digits if that state is hardly ever visited.

`stationary_with_tail` serves the queues at batch starts, where no relative values are needed but
the probabilities of long queues fall geometrically: one balance equation, which the others imply,
gives way to the normalization, which counts the tail.

Source of M: Paige, Styan, Wachter, "Computation of the stationary distribution of a Markov chain",
J. Stat. Comput. Simul. 4 (1975).
"""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dgetrf, dgetrs
from scipy.optimize import brentq

FloatArray = NDArray[np.float64]


class LuFactors:
    """The LU factors of a square matrix, to solve with it and with its transpose.

    The transpose is factored: the rows of I - P are diagonally dominant, so partial pivoting of
    its transpose swaps none. The matrix must be C-contiguous, and is overwritten.
    """

    def __init__(self, matrix: FloatArray) -> None:
        self._factors, self._pivots, _ = dgetrf(matrix.T, overwrite_a=True)

    def solve(self, right: FloatArray) -> FloatArray:
        return np.ascontiguousarray(dgetrs(self._factors, self._pivots, right, trans=1)[0])

    def solve_transposed(self, right: FloatArray) -> FloatArray:
        return np.ascontiguousarray(dgetrs(self._factors, self._pivots, right, trans=0)[0])


class ChainEquations:
    """The factored matrix M of a Markov chain (see the module's equations).

    The generator I - P must be C-contiguous, and is overwritten.
    """

    def __init__(self, generator: FloatArray) -> None:
        states = generator.shape[0]
        self._uniform = np.full(states, 1 / states)
        generator += 1 / states
        self._factors = LuFactors(generator)

    def stationary(self) -> FloatArray:
        return self._factors.solve_transposed(self._uniform)

    def relative_values(self, right: FloatArray) -> FloatArray:
        """Solve (I - P) x = `right` with a mean of 0 over the states, shape (states,)."""
        return self._factors.solve(right)


def stationary_with_tail(transitions: FloatArray, tail: float = 0.0) -> FloatArray:
    """Return the stationary probabilities of a chain whose far states fall geometrically.

    The transition probabilities have shape (rows, states), rows >= states: rows beyond `states`
    belong to the states beyond the last. From the last state on, the ratio of the probabilities of
    two successive ones is `tail`, at least 0 and below 1. The result, shape (rows,), sums to 1.
    """
    rows, count = transitions.shape
    beyond = tail ** np.arange(1, rows - count + 1)
    balance = np.eye(count) - transitions[:count].T
    balance[:, -1] -= beyond @ transitions[count:]
    balance[0] = 1.0
    balance[0, -1] = 1 / (1 - tail)  # the last state and all beyond it
    one = np.zeros(count)
    one[0] = 1.0
    probabilities = np.linalg.solve(balance, one)
    probabilities = np.append(probabilities, probabilities[-1] * beyond)
    probabilities[probabilities < 0] = 0.0  # rounding, far out
    return np.asarray(probabilities / probabilities.sum())


def mixed_tail_decay(means: FloatArray, probabilities: FloatArray, batch_size: int) -> float:
    r"""Return the rate at which the probabilities of long queues decay.

    If every batch takes :math:`b` requests and :math:`\mu < b` on average arrive meanwhile, the
    probability of a long queue falls by :math:`e^{-x}` from one length to the next, where
    :math:`x > 0` solves :math:`\ln \mathrm E\,e^{\mu (e^x - 1)} = b x` (Cramér and Lundberg's
    adjustment coefficient). `means` are the mean numbers of Poisson arrivals during each of the
    possible times of a batch, shape (n,).
    """
    logs = np.log(probabilities)

    def excess(x: float) -> float:
        exponents = logs + means * math.expm1(x)
        largest = float(exponents.max())
        return largest + math.log(np.exp(exponents - largest).sum()) - batch_size * x

    high = 1.0
    while excess(high) <= 0:
        high *= 2
    low = high / 2
    while excess(low) >= 0:
        low /= 2
    return float(brentq(excess, low, high))


@lru_cache(maxsize=64)
def tail_decay(mean_arrivals: float, batch_size: int) -> float:
    """Return `mixed_tail_decay` for batches that all take the same time."""
    return mixed_tail_decay(np.array([mean_arrivals]), np.ones(1), batch_size)
