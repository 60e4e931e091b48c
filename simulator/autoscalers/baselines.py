"""The autoscalers by name, each with one knob that trades replicas for compliance."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from simulator.autoscalers.knative import Knative, KnativeSettings
from simulator.autoscalers.mark import MarkProportional
from simulator.autoscalers.mdc import MdcSizing
from simulator.autoscalers.peak_of_minute import PeakOfMinute
from simulator.autoscalers.ray_default import RayDefault, RaySettings
from simulator.scaling import ScalingPolicy


@dataclass(frozen=True, eq=False)
class Deployment:
    """What may be known of a deployment before it sees any load.

    Attributes
    ----------
    profile : Profile
        Of each replica.
    objective : ServiceLevelObjective
    sla_rate_per_s : float
        Highest rate of one replica within the SLA.
    start_time_s : float
        What a replica is expected to take from its order until it serves.
    """

    profile: Profile
    objective: ServiceLevelObjective
    sla_rate_per_s: float
    start_time_s: float


@dataclass(frozen=True)
class Baseline:
    """An autoscaler that Sojourn is compared with.

    Attributes
    ----------
    make : callable
        Makes one for a deployment, a value of its knob (None: as published), and by name such
        further settings as it takes.
    knob : str
        What the knob is.
    stock : float or None
        Its value as published; None where that depends on the deployment.
    values : tuple of float
        For a curve, from the fewest replicas to the most.
    """

    make: Callable[..., ScalingPolicy]
    knob: str
    stock: float | None
    values: tuple[float, ...]


def _ray(deployment: Deployment, target: float | None = None, **settings: float) -> ScalingPolicy:
    return RayDefault(RaySettings(target_ongoing_requests=target or 2.0, **settings))


def _knative(
    deployment: Deployment, target: float | None = None, **settings: float
) -> ScalingPolicy:
    return Knative(KnativeSettings(target or deployment.profile.best_batch_size, **settings))


def _mdc(deployment: Deployment, headroom: float | None = None) -> ScalingPolicy:
    return MdcSizing(deployment.profile, deployment.objective, headroom or 1.0)


def _mark(deployment: Deployment, headroom: float | None = None) -> ScalingPolicy:
    return MarkProportional(
        deployment.profile, deployment.objective, deployment.start_time_s, headroom or 1.2
    )


def _peak(deployment: Deployment, headroom: float | None = None) -> ScalingPolicy:
    return PeakOfMinute(deployment.sla_rate_per_s, headroom or 1.0)


_HEADROOMS = (0.8, 1.0, 1.2, 1.5, 2.0, 3.0)
_CONCURRENCIES = (96.0, 48.0, 32.0, 24.0, 16.0, 8.0)

#: By name.
BASELINES: Mapping[str, Baseline] = MappingProxyType(
    {
        "ray": Baseline(_ray, "target_ongoing_requests", 2.0, _CONCURRENCIES),
        "knative": Baseline(_knative, "concurrency_target", None, _CONCURRENCIES),
        "mdc": Baseline(_mdc, "headroom", 1.0, _HEADROOMS),
        "mark": Baseline(_mark, "headroom", 1.2, _HEADROOMS),
        "peak": Baseline(_peak, "headroom", 1.0, _HEADROOMS),
    }
)
