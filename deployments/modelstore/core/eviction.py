"""Eviction rules: they rank idle blobs, and the lowest rank leaves the tier first.

A blob in use is never a candidate (Dakkak et al., TrIMS, 2018, section 4.1.2).
"""

from collections.abc import Callable
from dataclasses import dataclass

from policy.errors import InvalidInputError


@dataclass(frozen=True)
class IdleBlob:
    """An idle blob, as an eviction rule sees it.

    Attributes
    ----------
    size_bytes : int
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


def least_recently_used(blob: IdleBlob) -> tuple[float, ...]:
    """Evict the least recently used blob."""
    return (blob.last_use,)


def least_commonly_used(blob: IdleBlob) -> tuple[float, ...]:
    """Evict the least often used blob; break ties by the last use."""
    return (blob.uses, blob.last_use)


def cheapest_to_reload(blob: IdleBlob) -> tuple[float, ...]:
    """Evict the blob with the lowest cost of reloading; break ties by the last use.

    A blob on this machine's disk goes before one that only the remote has.
    """
    return (blob.size_bytes * blob.reload_s_per_byte, blob.last_use)


EVICTION_RULES: dict[str, EvictionRule] = {
    "lru": least_recently_used,
    "lcu": least_commonly_used,
    "reload-time": cheapest_to_reload,
}


def eviction_rule(name: str) -> EvictionRule:
    """Return an eviction rule by name.

    Raises
    ------
    InvalidInputError
        There is no such rule.
    """
    if name not in EVICTION_RULES:
        raise InvalidInputError(f"eviction: must be {', '.join(EVICTION_RULES)}, not {name!r}")
    return EVICTION_RULES[name]
