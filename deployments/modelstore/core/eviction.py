"""Eviction rules: they rank idle blobs, and the lowest rank leaves the tier first.

A blob in use is never a candidate (Dakkak et al., TrIMS, 2018, section 4.1.2).
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class IdleBlob:
    """An idle blob, as an eviction rule sees it.

    Attributes
    ----------
    last_use : int
        Number of the open that used it last; opens are counted from 1.
    uses : int
        Opens that used it since it entered the tier.
    reload_s_per_byte : float
        Measured cost of reloading it from the nearest tier, in s per byte.
    """

    size_bytes: int
    last_use: int
    uses: int
    reload_s_per_byte: float


EvictionRule = Callable[[IdleBlob], tuple[float, ...]]


#: The rules by name. Ties are broken by the last use.
EVICTION_RULES: dict[str, EvictionRule] = {
    # The least recently used.
    "lru": lambda blob: (blob.last_use,),
    # The least commonly used.
    "lcu": lambda blob: (blob.uses, blob.last_use),
    # The cheapest to reload: one on this machine's disk goes before one that only the remote has.
    "reload-time": lambda blob: (blob.size_bytes * blob.reload_s_per_byte, blob.last_use),
}
