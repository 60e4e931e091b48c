"""Random whole numbers for routing: SplitMix64, the same compiled and interpreted.

Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014.
"""

import numpy as np
from numpy.typing import NDArray

from simulator.compiling import inlined

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_30, _27, _31, _32 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(32)


@inlined
def draw(state: NDArray[np.uint64], below: int) -> int:
    """Draw one of 0, …, `below` - 1; `state`, shape (1,), moves on."""
    state[0] += _GAMMA
    z = state[0]
    z = (z ^ (z >> _30)) * _FIRST
    z = (z ^ (z >> _27)) * _SECOND
    z = z ^ (z >> _31)
    return int(np.int64(((z >> _32) * np.uint64(below)) >> _32))
