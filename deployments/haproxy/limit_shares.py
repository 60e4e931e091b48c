"""How a replica divides its concurrency limit among the HAProxies that send to it.

There is one HAProxy on each node, and each may send to all replicas. Told the whole limit, N of
them would let in N times as many requests as the replica can answer in time. So each names itself
(`deployments.haproxy.concurrency_limit`), and is told its share: a part of the limit goes to all
alike, so that one that was quiet can begin, and the rest by demand.

While the replica holds few requests, nothing needs protection, and a small share would only have
HAProxy refuse what there is room for. So each is told up to the whole limit then.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

#: The part of the limit that is divided equally.
EQUAL_PART = 0.25
#: From this part of the limit on, the requests at the replica leave nothing to be told twice.
CROWDED = 0.5
#: Time after which what was seen counts for 1/e.
MEMORY_S = 1.0
#: A HAProxy that is silent for so long has gone.
FORGET_AFTER_S = 3.0
#: Time between two divisions.
DIVIDE_EVERY_S = 0.1
#: More HAProxies than this are not told apart.
MAX_BALANCERS = 256
_WHOLE: Mapping[bytes, int] = MappingProxyType({})


def divide(limit: int, demands: Mapping[bytes, float]) -> dict[bytes, int]:
    """Return each one's share of a limit; all are rounded up.

    Parameters
    ----------
    limit : int
        At least 1.
    demands : mapping of bytes to float
        Positive numbers, by the HAProxies' names.
    """
    total = sum(demands.values())
    equal, rest = EQUAL_PART * limit / max(1, len(demands)), (1 - EQUAL_PART) * limit
    return {name: math.ceil(equal + rest * (one / total)) for name, one in demands.items()}


@dataclass(slots=True)
class _Balancer:
    """A HAProxy: the requests that it had lately, and when it last sent one."""

    demand: float
    seen_s: float


class LimitShares:
    """Count what each HAProxy sends and refuses, and divide the limit by it.

    Parameters
    ----------
    limit : callable
        Returns the requests that all of them together should have here; None: as many as come.
    held_s : callable
        Returns for how long the requests answered until now were here, in seconds, all summed up.

    Attributes
    ----------
    told : mapping of bytes to int
        The shares by HAProxies' names. Those that are missing are told the whole limit: a single
        one, and all of them where there is no limit.
    """

    def __init__(self, limit: Callable[[], int | None], held_s: Callable[[], float]) -> None:
        self.told = _WHOLE
        self._limit = limit
        self._held_s = held_s
        self._came: dict[bytes, int] = {}
        self._known: dict[bytes, _Balancer] = {}
        self._divided_s = self._divide_at_s = -math.inf
        #: The time that answered requests were here: all, and of the last seconds, these as well.
        self._held_until_now_s = held_s()
        self._held_lately_s = self._lately_s = 0.0

    def of(self, balancer: bytes | None) -> int | None:
        """Return what to tell a HAProxy, given its name; None: as many as come."""
        limit = self._limit()
        return limit if limit is None or balancer is None else self.told.get(balancer, limit)

    def count(self, balancer: bytes, requests: int, now_s: float) -> None:
        """Count requests that a HAProxy sent, and those that it refused before."""
        self._came[balancer] = self._came.get(balancer, 0) + requests
        if now_s >= self._divide_at_s or balancer not in self._known:
            self._divide(now_s)

    def _divide(self, now_s: float) -> None:
        passed_s = min(now_s - self._divided_s, FORGET_AFTER_S)
        self._divided_s, self._divide_at_s = now_s, now_s + DIVIDE_EVERY_S
        keep = math.exp(-passed_s / MEMORY_S)
        self._take_counts(keep, now_s)
        before_s, self._held_until_now_s = self._held_until_now_s, self._held_s()
        self._held_lately_s = keep * self._held_lately_s + self._held_until_now_s - before_s
        self._lately_s = keep * self._lately_s + passed_s
        limit = self._limit()
        if limit is None or len(self._known) < 2:
            self.told = _WHOLE
            return
        # Little's law: the mean number of requests here.
        held = self._held_lately_s / self._lately_s
        spare = max(0.0, 1 - held / (CROWDED * limit))
        shares = divide(limit, {name: one.demand for name, one in self._known.items()})
        self.told = {name: one + int(spare * (limit - one)) for name, one in shares.items()}

    def _take_counts(self, keep: float, now_s: float) -> None:
        """Add what has come to what is known; forget who has gone."""
        for one in self._known.values():
            one.demand *= keep
        for name, requests in self._came.items():
            known = self._known.get(name)
            if known is not None:
                known.demand += requests
                known.seen_s = now_s
            elif len(self._known) < MAX_BALANCERS:
                self._known[name] = _Balancer(requests, now_s)
        self._came.clear()
        gone_s = now_s - FORGET_AFTER_S
        for name in [name for name, one in self._known.items() if one.seen_s < gone_s]:
            del self._known[name]
