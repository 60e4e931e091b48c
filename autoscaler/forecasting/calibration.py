"""Adapt the risk until the share of one-minute windows that comply is what was asked for.

A forecast that is right on average may be wrong this week. So the risk that the forecasts are asked
for is adapted online, as in adaptive conformal inference (Gibbs and Candès, Adaptive conformal
inference under distribution shift, 2021). With m_t = 1 for a window t that was missed, else 0, and
a the share that may be missed, the logarithm of the risk follows

    ln risk_{t+1} = ln risk_t + γ (a - m_t).

Summing this up over T windows gives

    |mean of m_t - a| = |ln risk_{T+1} - ln risk_1| / (γ T) <= ln(MAX_RISK / MIN_RISK) / (γ T),

whatever the load does, as long as the risk does not reach its bounds. At the lower bound more
windows may be missed: no forecast from the past would have sufficed. At the upper bound fewer are.

Whether a window was missed is judged against what it required, and not by late answers. What a
fleet could have served in a second is the least that was ordered in the start time before it. The
window was missed if too large a share of its requests exceeds that. So a miss is the forecast's
fault: starts that fail, or a full cluster, do not lower the risk, and refusals that are reported
late or in bulk do not hide a miss. A window that depends on an order which `max_replicas` or a
budget limited is not judged at all: what the forecast asked for was not ordered.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoscaler.forecasting.load_history import WINDOW_S

FloatArray = NDArray[np.float64]

#: Bounds of the risk.
MIN_RISK, MAX_RISK = 0.001, 0.1
#: The risk to begin with, as a share of a: margins are chosen on the windows that they are judged
#: by, so they miss more of the next ones.
_FIRST_SHARE = 0.7
#: The step γ: a missed window lowers the risk by 5%, and it takes 1 / a windows to make up for it.
STEP = 0.05
#: After a longer silence, windows are not judged: what was ordered meanwhile is unknown.
_MAX_GAP_S = 10.0


class WindowCalibration:
    """The risk to ask a forecast for, learned from the windows that orders have missed."""

    def __init__(self, compliant_share: float = 0.99) -> None:
        self._allowed = 1.0 - compliant_share
        self._log_risk = _bounded(math.log(_FIRST_SHARE * self._allowed))
        # (time, requests per second within the SLA) of each change in what was ordered; NaN if the
        # order was limited.
        self._orders: deque[tuple[float, float]] = deque()
        self._since_s = math.inf
        self._ordered_s = -math.inf
        self._judged_until_s = -math.inf

    @property
    def compliant_share(self) -> float:
        """The share of the windows that should comply; the risk changes in proportion with it."""
        return 1.0 - self._allowed

    @compliant_share.setter
    def compliant_share(self, share: float) -> None:
        before, self._allowed = self._allowed, 1.0 - share
        if self._allowed != before:
            self._log_risk = _bounded(self._log_risk + math.log(self._allowed / before))

    @property
    def risk(self) -> float:
        return math.exp(self._log_risk)

    def note_order(self, now_s: float, capacity_per_s: float) -> None:
        """Record the requests per second that the fleet ordered serves within the SLA.

        NaN: less was ordered than the forecast asked for.
        """
        if now_s - self._ordered_s > _MAX_GAP_S:
            self._orders.clear()
            self._since_s = now_s
        self._ordered_s = now_s
        if not self._orders or not _is_same(self._orders[-1][1], capacity_per_s):
            self._orders.append((now_s, capacity_per_s))

    def judge(
        self,
        end_s: int,
        horizon_s: float,
        late_share_allowed: float,
        rates_of_window: Callable[[int], FloatArray | None],
    ) -> None:
        """Judge the windows that are over and have not been judged yet.

        ``rates_of_window(end_s)`` returns the rates by the second of the window that ended then;
        None if they are not known.
        """
        newest = end_s // WINDOW_S * WINDOW_S
        if newest <= self._judged_until_s:
            return
        earliest = max(self._judged_until_s, newest - 2 * WINDOW_S)
        self._judged_until_s = newest
        for window_end in range(newest, int(earliest), -WINDOW_S):
            begin_s = window_end - WINDOW_S - horizon_s
            if begin_s < self._since_s or window_end > self._ordered_s + _MAX_GAP_S:
                continue
            rates = rates_of_window(window_end)
            served = self._served_per_s(window_end, horizon_s)
            if rates is not None and not np.isnan(served).any():
                excess = np.maximum(0.0, rates - served)
                self._count(bool(excess.sum() > late_share_allowed * rates.sum()))
        self._forget_before(newest - WINDOW_S - horizon_s)

    def _count(self, missed: bool) -> None:
        self._log_risk = _bounded(self._log_risk + STEP * (self._allowed - missed))

    def _served_per_s(self, window_end_s: int, horizon_s: float) -> FloatArray:
        """Return what could be served in each second of a window, had starts taken the horizon.

        NaN where it depends on a limited order.
        """
        seconds = np.arange(window_end_s - WINDOW_S, window_end_s)
        served = np.full(WINDOW_S, math.inf)
        replaced_s = math.inf
        for time_s, capacity in reversed(self._orders):
            # In force until `replaced_s`, and then for another horizon what it kept from serving.
            touched = (seconds >= time_s) & (seconds - horizon_s < replaced_s)
            served[touched] = np.minimum(served[touched], capacity)
            replaced_s = time_s
        return served

    def _forget_before(self, time_s: float) -> None:
        while len(self._orders) > 1 and self._orders[1][0] <= time_s:
            self._orders.popleft()

    def state_dict(self) -> dict[str, Any]:
        """Return what was learned as a plain dict; the orders are not kept."""
        return {"risk": self.risk}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        risk = float(state["risk"])
        if not MIN_RISK / 2 <= risk <= 2 * MAX_RISK:
            raise ValueError(f"risk: must be from {MIN_RISK} to {MAX_RISK}, not {risk}")
        self._log_risk = _bounded(math.log(risk))


def _bounded(log_risk: float) -> float:
    return min(max(log_risk, math.log(MIN_RISK)), math.log(MAX_RISK))


def _is_same(capacity: float, other: float) -> bool:
    return capacity == other or (math.isnan(capacity) and math.isnan(other))
