"""Measured against predicted late shares: how far off the replicas' own model is.

A replica tells which arrival rate it takes under the SLA; it knows that from its profile and from
Poisson arrivals. A device with a slower tail, or a neighbour on it, takes less. So what the
replicas measure corrects it: by the factor on the rate at which the model would have predicted what
was measured.

Little can be told from little load: far below the rate nobody is late, on any device. So the
correction stays while nothing speaks against it, and drifts back to 1 over hours.

- Down, where more requests missed the SLA than it allows, and by more than chance, although the
  model says that the rate was one the replicas can take. As long as the SLA holds, whatever is late
  may well be late because the batching waits to save energy; and what one replica refused, another
  may have answered in time.
- Up, where so few missed it that the model should have expected more, and then only as far as the
  evidence goes.
- Seconds in which the model itself calls the fleet too small say nothing, and neither does what
  they leave behind or how they begin.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autoscaler.offered_load import offered_requests
from autoscaler.reports import ReplicaReport
from policy.errors import InvalidInputError
from policy.load_lateness import LoadLatenessCurve

#: Bounds of the correction. A replica refits its profile where batches take a quarter longer than
#: it says, so what is left to correct is less than that and a slow tail: 1 / 1.25 and some room.
#: Upwards a mistake breaks the SLA, and evidence is rare.
LEAST, MOST = 0.7, 1.5
#: The load is taken as constant over this long.
BLOCK_S = 10.0
#: What was measured this long ago counts for 1/e.
MEMORY_S = 600.0
#: Most that a block changes the correction by: a fifth down takes two minutes, which rides out a
#: hiccup; up it takes an hour.
DOWN, UP = 0.98, 1.0005
#: Towards 1 without evidence: 1% an hour, so that a past trouble is not paid for for ever.
DRIFT = 0.01 * BLOCK_S / 3600
#: Standard deviations that are more than chance.
CERTAIN = 3.0
#: Another rate than this much off is another model: what was measured says nothing of it.
_SAME_MODEL = 0.05
_STEPS = 40
_FACTORS = tuple(LEAST * (MOST / LEAST) ** (i / _STEPS) for i in range(_STEPS + 1))


@dataclass
class _Block:
    """What the replicas counted in `BLOCK_S`."""

    begin_s: float = -math.inf
    tries: float = 0.0
    refused: float = 0.0
    late: float = 0.0
    replica_s: float = 0.0


@dataclass(frozen=True)
class _Measured:
    """A block, by requests: a refused try may be taken elsewhere.

    Attributes
    ----------
    requests : float
    rate_per_s : float
        Of requests, to one replica.
    missed : float
        Requests that were late, or whose first try was refused: what the model tells of a replica.
    lost : float
        Requests that were late, or that every replica tried refused: what the SLA tells of.
    """

    requests: float
    rate_per_s: float
    missed: float
    lost: float

    @classmethod
    def of(cls, block: _Block, retries: int) -> "_Measured":
        requests = float(offered_requests(block.tries, block.refused, retries))
        refused_share = block.refused / block.tries if block.tries else 0.0
        given_up = requests * refused_share ** (retries + 1)
        if block.replica_s < 1.5 * BLOCK_S:
            # A single replica that is full is so for every try.
            given_up = max(given_up, block.refused / (retries + 1))
        return cls(
            requests,
            requests / block.replica_s if block.replica_s else math.inf,
            requests * refused_share + block.late,
            given_up + block.late,
        )


class SlaRateCorrection:
    """Watches how many requests miss the SLA, and gives the correction of the replicas' rate.

    Attributes
    ----------
    correction : float
        What to multiply the SLA rate of the replicas' model by.
    error : float or None
        Measured less predicted share of requests that the replica asked first refuses or answers
        late, over some ten minutes; None while nothing can be told.
    """

    def __init__(self) -> None:
        self._begin(1.0)

    def _begin(self, correction: float) -> None:
        self.correction = correction
        self.error: float | None = None
        self._block = _Block()
        self._last: _Measured | None = None
        self._last_usable = self._before_usable = False
        self._curve: LoadLatenessCurve | None = None
        self._forget()

    def _forget(self) -> None:
        self._requests = self._missed = self._lost = 0.0
        self._expected = [0.0] * len(_FACTORS)
        self._expected_uncorrected = 0.0
        self.error = None

    def count_between(self, before: ReplicaReport, now: ReplicaReport) -> None:
        """Take in what a replica counted between two of its reports."""
        tries = now.offered_total - before.offered_total
        refused = now.refused_total - before.refused_total
        late = now.late_total - before.late_total
        if min(tries, refused, late) < 0:  # its counters began anew
            return
        block = self._block
        block.tries += tries
        block.refused += refused
        block.late += late
        block.replica_s += now.time_s - before.time_s

    def revise(
        self,
        now_s: float,
        curve: LoadLatenessCurve,
        allowed: float,
        batch_size: float,
        retries: int,
    ) -> None:
        """Revise the correction, if a block of time is over.

        Parameters
        ----------
        now_s : float
        curve : LoadLatenessCurve
            The replicas' model, uncorrected.
        allowed : float
            Share of the requests that may miss the SLA.
        batch_size : float
            Requests of a full batch: they are late together.
        retries : int
            Retries after which the balancer gives up.
        """
        block = self._block
        if math.isinf(block.begin_s):
            block.begin_s = now_s
        if now_s - block.begin_s < BLOCK_S:
            return
        self._block = _Block(now_s)
        if self._curve is None or not math.isclose(
            curve.sla_rate_per_s, self._curve.sla_rate_per_s, rel_tol=_SAME_MODEL
        ):
            self._curve = curve
            self._forget()
            self._last, self._last_usable = None, False
        measured = _Measured.of(block, retries)
        usable = (
            now_s - block.begin_s < 2 * BLOCK_S
            and measured.rate_per_s <= self.correction * curve.sla_rate_per_s
        )
        # The block before this one counts, now that both of its neighbours are known.
        if self._last is not None and self._before_usable and self._last_usable and usable:
            self._learn(self._last, curve)
        self._last, self._before_usable, self._last_usable = measured, self._last_usable, usable
        self._correct(allowed, batch_size)

    def _learn(self, seen: _Measured, curve: LoadLatenessCurve) -> None:
        keep = math.exp(-BLOCK_S / MEMORY_S)
        self._requests = keep * self._requests + seen.requests
        self._missed = keep * self._missed + seen.missed
        self._lost = keep * self._lost + seen.lost
        self._expected = [
            keep * before + seen.requests * curve.late_share(seen.rate_per_s / factor)
            for before, factor in zip(self._expected, _FACTORS, strict=True)
        ]
        self._expected_uncorrected = (
            keep * self._expected_uncorrected + seen.requests * curve.late_share(seen.rate_per_s)
        )

    def _correct(self, allowed: float, batch_size: float) -> None:
        if self._requests > 0:
            self.error = (self._missed - self._expected_uncorrected) / self._requests
        # Requests miss the SLA in clusters, batches that follow a long queue: a handful of full
        # batches is what one cluster counts.
        cluster = 4 * batch_size
        may_miss = allowed * self._requests
        before = self.correction
        if self._lost > may_miss + CERTAIN * math.sqrt(cluster * may_miss):
            fitting = next(
                (
                    factor
                    for factor, expected in zip(
                        reversed(_FACTORS), reversed(self._expected), strict=True
                    )
                    if expected >= self._missed
                ),
                LEAST,
            )
            self.correction = max(min(before, fitting), DOWN * before)
            return
        most = next(
            factor
            for factor, expected in zip(_FACTORS, (*self._expected[:-1], 0.0), strict=True)
            if expected - CERTAIN * math.sqrt(cluster * expected) <= self._missed
        )
        if most > before:
            self.correction = min(most, UP * before)
        elif before < 1:
            self.correction = min(1.0, before * (1 + DRIFT))
        else:
            self.correction = max(1.0, before * (1 - DRIFT))

    def state_dict(self) -> dict[str, Any]:
        """Give what was learned: the correction. What it was learned from comes anew."""
        return {"correction": self.correction}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave.

        Raises
        ------
        InvalidInputError
            The state is not of this form.
        """
        try:
            correction = float(state["correction"])
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInputError(f"state of the model error: not usable ({error!r})") from error
        if not LEAST <= correction <= MOST:
            raise InvalidInputError(f"state of the model error: correction is {correction}")
        self._begin(correction)
