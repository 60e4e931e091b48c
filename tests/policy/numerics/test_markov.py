import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from quantecon.markov.gth_solve import gth_solve
from scipy.special import lambertw

from policy.numerics.markov import ChainEquations, stationary_with_tail, tail_decay


def random_chain(states, seed):
    transitions = np.random.default_rng(seed).random((states, states)) ** 4
    return transitions / transitions.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("states", [1, 2, 40])
def test_stationary_probabilities_are_those_of_gth_elimination(states):
    chain = random_chain(states, seed=states)
    expected = gth_solve(chain)
    assert_allclose(ChainEquations(np.eye(states) - chain).stationary(), expected, rtol=1e-11)
    assert_allclose(stationary_with_tail(chain), expected, rtol=1e-11)


@pytest.mark.parametrize("ratio", [0.2, 0.9])
def test_a_geometric_tail_stands_for_infinitely_many_states(ratio):
    # A birth-death chain: up with probability p, down with q; its probabilities fall by p / q.
    up = ratio / (1 + ratio)
    states, rows = 30, 40
    transitions = np.zeros((rows, states))
    transitions[0, 0] = 1 - up
    for state in range(rows):
        if state + 1 < states:
            transitions[state, state + 1] = up
        if 0 < state <= states:
            transitions[state, state - 1] = 1 - up
    found = stationary_with_tail(transitions, ratio)
    expected = ratio ** np.arange(rows)
    assert_allclose(found, expected / expected.sum(), rtol=1e-10)


@given(st.integers(1, 256), st.floats(0.01, 0.99))
def test_the_tail_decay_is_the_root_of_its_equation(batch_size, load):
    mean = load * batch_size
    decay = tail_decay(mean, batch_size)
    assert decay > 0
    assert mean * math.expm1(decay) == pytest.approx(batch_size * decay, rel=1e-9)
    # exp(decay) in closed form, with the other branch of Lambert's function.
    closed = -complex(lambertw(-load * math.exp(-load), -1)).real / load
    assert math.exp(decay) == pytest.approx(closed, rel=1e-8)
