"""Correct the SLA rate of a replica's model by the share of late requests that is measured.

Each replica reports its SLA rate: the highest arrival rate at which it keeps the SLA, according to
its profile and Poisson arrivals. A device with a slower tail, or one shared with a noisy neighbor,
sustains less. The correction is the factor on the rate at which the model would have predicted
what was measured: the late share without refusals by time, because a device slower than its replica
believes admits what it then answers late. That of a replica that refuses in time grows so slowly
with the rate that the correction would fall too far; it counts beyond the rate that a replica
believes to sustain by itself, where a fleet may run.

Little can be learned at little load: far below the SLA rate nothing is late on any device. So the
correction stays while there is no evidence against it, and drifts back to 1 over hours.

- It goes down if more requests missed the SLA than it allows, by more than chance, although the
  model says that the replicas can sustain the rate. While the SLA holds, lateness is no evidence:
  batching may wait on purpose to save energy, and another replica may have answered in time what
  one refused.
- It goes up if so few requests missed the SLA that the model should have predicted more, and only
  as far as the evidence goes.
- Periods in which the model itself calls the fleet too small are ignored, and so are the periods
  right before and after them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autoscaler.observe.retries import given_up_share, offered_requests, retries_among
from autoscaler.reports import ReplicaReport
from policy.load_lateness import LoadLatenessCurve

#: Bounds of the correction. A replica refits its profile if batches take a quarter longer than the
#: profile says, so what is left to correct is less than that, plus a slow tail: 1 / 1.25, with some
#: margin. The upper bound is there because a mistake upwards breaks the SLA, and evidence is rare.
MIN_CORRECTION, MAX_CORRECTION = 0.7, 1.5
#: The load is treated as constant over a block of this length.
BLOCK_S = 10.0
#: Time constant of the memory: what was measured this long ago counts for 1/e.
MEMORY_S = 600.0
#: Limits on the factor by which one block changes the correction. A fifth down takes two minutes,
#: which rides out a hiccup; a fifth up takes an hour.
MAX_DECREASE, MAX_INCREASE = 0.98, 1.0005
#: Relative drift towards 1 per block without evidence, 1% an hour: past trouble is not paid for
#: for ever.
DRIFT = 0.01 * BLOCK_S / 3600
#: Standard deviations beyond which a difference is not chance.
SIGNIFICANT_DEVIATIONS = 3.0
#: An SLA rate that changes by more than this share belongs to another model: start over.
_SAME_MODEL_TOLERANCE = 0.05
_STEPS = 40
#: The corrections for which the model's prediction is tracked, ascending.
_FACTORS = tuple(
    MIN_CORRECTION * (MAX_CORRECTION / MIN_CORRECTION) ** (i / _STEPS) for i in range(_STEPS + 1)
)


@dataclass
class _Block:
    """The sums of what all replicas counted in a block of `BLOCK_S` seconds."""

    begin_s: float = -math.inf
    attempts: float = 0.0
    refused: float = 0.0
    by_balancer: float = 0.0
    late: float = 0.0
    replica_s: float = 0.0


@dataclass(frozen=True)
class _Measured:
    """A block, converted from attempts to requests: other replicas are tried after a refusal.

    `missed` requests are late or refused at their first attempt: comparable with one replica's
    model. `lost` ones are late or refused at every attempt: comparable with the SLA.
    """

    requests: float
    rate_per_s: float
    missed: float
    lost: float

    @classmethod
    def from_block(cls, block: _Block, retries: int) -> "_Measured":
        retries = int(retries_among(block.replica_s / BLOCK_S, retries))
        counts = (block.attempts, block.refused, block.by_balancer)
        requests = float(offered_requests(*counts, retries))
        refused_share = block.refused / block.attempts if block.attempts else 0.0
        given_up = requests * float(given_up_share(*counts, retries))
        return cls(
            requests,
            requests / block.replica_s if block.replica_s else math.inf,
            requests * refused_share + block.late,
            given_up + block.late,
        )


class SlaRateCorrection:
    """Track the correction of the SLA rate that the replicas' model predicts.

    `error` is the measured minus the predicted fraction of requests that the first replica asked
    refuses or answers late, over about ten minutes; None while it is unknown.
    """

    def __init__(self) -> None:
        self._reset(1.0)

    def _reset(self, correction: float) -> None:
        self.correction = correction
        self.error: float | None = None
        self._block = _Block()
        self._last: _Measured | None = None
        self._last_usable = self._earlier_usable = False
        self._curve: LoadLatenessCurve | None = None
        self._reset_evidence()

    def _reset_evidence(self) -> None:
        self._requests = self._missed = self._lost = 0.0
        self._expected = [0.0] * len(_FACTORS)
        self._expected_uncorrected = 0.0
        self.error = None

    def count_between(self, before: ReplicaReport, now: ReplicaReport) -> None:
        attempts = now.offered_total - before.offered_total
        refused = now.refused_total - before.refused_total
        late = now.late_total - before.late_total
        if attempts < 0 or refused < 0 or late < 0:  # the replica restarted
            return
        block = self._block
        block.attempts += attempts
        block.refused += refused
        by_balancer = now.refused_by_balancer_total - before.refused_by_balancer_total
        block.by_balancer += max(0.0, by_balancer)
        block.late += late
        block.replica_s += now.time_s - before.time_s

    def revise(
        self,
        now_s: float,
        curve: LoadLatenessCurve,
        late_share_allowed: float,
        batch_size: float,
        retries: int,
        sustained_per_s: float,
    ) -> None:
        """Update the correction if a block is complete.

        The curve is the replicas' model, and `sustained_per_s` what each replica of the fleet takes
        within the SLA by it, both uncorrected. Requests of a full batch are late together.
        """
        block = self._block
        if math.isinf(block.begin_s):
            block.begin_s = now_s
        if now_s - block.begin_s < BLOCK_S:
            return
        self._block = _Block(now_s)
        if self._curve is None or not math.isclose(
            curve.sla_rate_per_s, self._curve.sla_rate_per_s, rel_tol=_SAME_MODEL_TOLERANCE
        ):
            self._curve = curve
            self._reset_evidence()
            self._last, self._last_usable = None, False
        measured = _Measured.from_block(block, retries)
        usable = (
            now_s - block.begin_s < 2 * BLOCK_S
            and measured.rate_per_s <= self.correction * sustained_per_s
        )
        # A block counts only if the blocks before and after it are usable, too.
        if self._last is not None and self._earlier_usable and self._last_usable and usable:
            self._add_evidence(self._last, curve)
        self._last, self._earlier_usable, self._last_usable = measured, self._last_usable, usable
        self._update_correction(late_share_allowed, batch_size)

    def _add_evidence(self, measured: _Measured, curve: LoadLatenessCurve) -> None:
        keep = math.exp(-BLOCK_S / MEMORY_S)
        self._requests = keep * self._requests + measured.requests
        self._missed = keep * self._missed + measured.missed
        self._lost = keep * self._lost + measured.lost
        self._expected = [
            keep * before + measured.requests * _missed_share(curve, measured.rate_per_s, factor)
            for before, factor in zip(self._expected, _FACTORS, strict=True)
        ]
        self._expected_uncorrected = (
            keep * self._expected_uncorrected
            + measured.requests * _missed_share(curve, measured.rate_per_s, 1.0)
        )

    def _update_correction(self, late_share_allowed: float, batch_size: float) -> None:
        if self._requests > 0:
            self.error = (self._missed - self._expected_uncorrected) / self._requests
        # Requests miss the SLA in clusters: a few full batches in a row after a long queue.
        cluster = 4 * batch_size
        may_miss = late_share_allowed * self._requests
        before, tracked = self.correction, [*zip(_FACTORS, self._expected, strict=True)]
        if self._lost > may_miss + SIGNIFICANT_DEVIATIONS * math.sqrt(cluster * may_miss):
            fitting = max(
                (factor for factor, expected in tracked if expected >= self._missed),
                default=MIN_CORRECTION,
            )
            self.correction = max(min(before, fitting), MAX_DECREASE * before)
            return
        supported = min(
            (
                factor
                for factor, expected in tracked
                if expected - SIGNIFICANT_DEVIATIONS * math.sqrt(cluster * expected) <= self._missed
            ),
            default=MAX_CORRECTION,
        )
        if supported > before:
            self.correction = min(supported, MAX_INCREASE * before)
        elif before < 1:
            self.correction = min(1.0, before * (1 + DRIFT))
        else:
            self.correction = max(1.0, before * (1 - DRIFT))

    def state_dict(self) -> dict[str, Any]:
        """Return the correction as a plain dict; the evidence is not kept."""
        return {"correction": self.correction}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        correction = float(state["correction"])
        if not MIN_CORRECTION <= correction <= MAX_CORRECTION:
            raise ValueError(f"correction: {correction}")
        self._reset(correction)


def _missed_share(curve: LoadLatenessCurve, rate_per_s: float, factor: float) -> float:
    """Return the share late or refused at the first try, if the SLA rate is `factor` times as high.

    Beyond the rate that a replica believes to sustain, it refuses the excess, and a slower device
    answers some of the rest late.
    """
    sla_rate_per_s = curve.sla_rate_per_s
    if rate_per_s <= sla_rate_per_s:
        return curve.late_share(rate_per_s / factor)
    if factor >= 1:
        return 1 - curve.service_level(rate_per_s / factor)
    late = curve.late_share(sla_rate_per_s / factor) - curve.late_share(sla_rate_per_s)
    return min(1.0, 1 - curve.service_level(rate_per_s) + late)
