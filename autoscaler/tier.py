"""The steps of a decision for one horizon: demand → size → hold.

Each step takes what it needs, and returns its result with the words for the decision's reason.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autoscaler.forecasting.calibration import WindowCalibration
from autoscaler.forecasting.demand import DemandForecast, DemandForecaster
from autoscaler.forecasting.load_history import LoadHistory
from autoscaler.observe.fleet_monitor import FleetStatus
from autoscaler.scale_down import ScaleDownStabilizer, first_fleet_kept_s
from autoscaler.settings import AutoscalerSettings
from autoscaler.sizing.fleet_sizing import FleetSizing


@dataclass(frozen=True)
class Horizon:
    """How far a decision looks ahead, until a replica ordered now serves, and at which risk.

    Fewer replicas must have been enough for `scale_down_delay_s` before some go.
    """

    seconds: float
    risk: float
    scale_down_delay_s: float


@dataclass(frozen=True)
class Demand:
    """The rate to size for, in requests per second, and where it comes from, in words."""

    per_s: float
    forecast: DemandForecast
    origin: str


class Tier:
    """The forecast for one horizon, its risk, and its scale-down delay."""

    def __init__(self, history: LoadHistory, method: str = "") -> None:
        self.forecaster = DemandForecaster(history, method)
        self.calibration = WindowCalibration()
        self.stabilizer = ScaleDownStabilizer()
        self.first_fleet = 0

    def demand(
        self,
        now_s: float,
        status: FleetStatus,
        settings: AutoscalerSettings,
        late_share_allowed: float,
        horizon: Horizon,
        replica_per_s: float,
    ) -> Demand:
        """Return the forecast with the burst factor, or what an overload needs if that is more.

        Each replica serves `replica_per_s` within the SLA; 0 if that is not known.
        """
        history = self.forecaster.history
        assert history.end_s is not None
        self.calibration.compliant_share = settings.compliant_share
        self.calibration.judge(
            history.end_s, horizon.seconds, late_share_allowed, history.rates_of_minute
        )
        forecast = self.forecaster.forecast(
            now_s, horizon.seconds, horizon.risk, replica_per_s, horizon.scale_down_delay_s
        )
        assert forecast is not None
        forecast_per_s = settings.burst_factor * forecast.demand_per_s
        if status.overload.rate_per_s > forecast_per_s:
            origin = f"ahead of the forecast, because {status.overload.reason}"
            return Demand(status.overload.rate_per_s, forecast, origin)
        adapted = ""
        if settings.risk is None:
            adapted = f" (adapted so that {settings.compliant_minutes:g}% of the minutes comply)"
        origin = f"by {forecast.method} at a risk of {horizon.risk:.2g}{adapted}"
        return Demand(forecast_per_s, forecast, origin)

    def hold(
        self,
        now_s: float,
        current: int,
        demand: Demand,
        sizing: FleetSizing,
        required: int,
        status: FleetStatus,
        horizon: Horizon,
        start_time_s: float,
    ) -> tuple[int, str]:
        """Return the replicas to have, and why: more at once, fewer only after a delay."""
        delay_s = horizon.scale_down_delay_s
        self.stabilizer.observe(now_s, demand.per_s, delay_s)
        self.first_fleet = self.first_fleet or current
        if required > current:
            return required, f"scale out {current} -> {required}"
        if required == current:
            return current, f"keep {current}"
        if status.silent_replicas > status.replicas:
            return current, f"keep {current}: most replicas do not report"
        if self.stabilizer.watched_s(now_s) < delay_s:
            return current, (
                f"keep {current}: watched for {self.stabilizer.watched_s(now_s):.0f} s, "
                f"less than {delay_s:g} s"
            )
        stable_per_s = status.serving_per_known * self.stabilizer.stable_demand_per_s(
            demand.per_s, status.offered_per_s
        )
        replicas = min(current, sizing.required(stable_per_s).replicas)
        if replicas == current:
            until_s = self.stabilizer.held_until_s(
                delay_s,
                lambda per_s: sizing.required(status.serving_per_known * per_s).replicas >= current,
            )
            left = "" if math.isinf(until_s) else f", for {until_s - now_s:.0f} s more"
            return current, (
                f"keep {current}: the highest demand of the last {delay_s:g} s, "
                f"{stable_per_s:.4g}/s, needs them{left}"
            )
        kept_s = first_fleet_kept_s(start_time_s)
        if status.known_s < kept_s and replicas < self.first_fleet:
            replicas = min(current, self.first_fleet)
            if replicas == current:
                return current, (
                    f"keep {current}: the load has been known for {status.known_s:.0f} s, less "
                    f"than {kept_s:.0f} s"
                )
        return replicas, (
            f"scale in {current} -> {replicas}: enough for {stable_per_s:.4g}/s, the highest "
            f"demand of the last {delay_s:g} s"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return what was learned as plain numbers, text, lists and dicts."""
        return {
            "method": self.forecaster.method,
            "calibration": self.calibration.state_dict(),
            "first_fleet": self.first_fleet,
        }

    @classmethod
    def from_state(cls, history: LoadHistory, state: Mapping[str, Any]) -> "Tier":
        """Make one from what `state_dict` returned."""
        tier = cls(history, str(state["method"]))
        tier.calibration.load_state(state["calibration"])
        tier.first_fleet = int(state["first_fleet"])
        return tier
