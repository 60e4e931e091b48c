"""The simulated autoscalers by name, each with a knob that trades replicas for compliance.

To add an autoscaler, write a `autoscaler.simulator.scaling.ScalingPolicy` in a module of this
package, list it
in `AUTOSCALERS`, and give it a grid in `autoscaler.simulator.autoscalers.choices`. The command
line, the reports and the benchmarks take it from here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from autoscaler.history.traces import Trace
from autoscaler.settings import AutoscalerSettings
from autoscaler.simulator.autoscalers.fixed import FixedFleet, fixed_at_peak
from autoscaler.simulator.autoscalers.hpa import HpaSettings, KubernetesHpa
from autoscaler.simulator.autoscalers.knative import Knative, KnativeSettings
from autoscaler.simulator.autoscalers.latency_thresholds import LatencyThresholds
from autoscaler.simulator.autoscalers.mark import MarkProportional
from autoscaler.simulator.autoscalers.mdc import MdcSizing
from autoscaler.simulator.autoscalers.mean_latency import MeanLatencySizing
from autoscaler.simulator.autoscalers.oracle import Clairvoyant, required_replicas_by_second
from autoscaler.simulator.autoscalers.peak_of_minute import PeakOfMinute
from autoscaler.simulator.autoscalers.ray_default import RayDefault, RaySettings
from autoscaler.simulator.autoscalers.sojourn import SojournAutoscaler
from autoscaler.simulator.results import FloatArray
from autoscaler.simulator.scaling import ScalingPolicy
from autoscaler.standbys import TwoTierStarts
from policy.errors import InvalidInputError
from policy.objective import ServiceLevelObjective
from policy.profile import Profile

#: The autoscalers compared by default.
DEFAULT = ("sojourn", "ray", "static", "oracle")
#: The autoscaler that cost is measured against.
ORACLE = "oracle"


@dataclass(frozen=True, eq=False)
class ScalingProblem:
    """Everything that an autoscaler may be built from.

    Attributes
    ----------
    profile : Profile
        Profile of each replica.
    objective : ServiceLevelObjective
        The client's SLA.
    sla_rate_per_s : float
        Highest arrival rate of one replica within the SLA.
    start_time_s : float
        Expected time from a replica's order until it serves.
    offered : FloatArray, shape (seconds,)
        Requests in each second. Only `static` and `oracle`, which know the trace, use them.
    settings : AutoscalerSettings
        Settings of Sojourn's autoscaler.
    min_replicas, max_replicas : int
        Bounds of the fleet.
    starts : TwoTierStarts or None
        How long standbys take to serve, and their price; None: the fleet has none.
    history : Trace or None
        Load before the run, at negative times, that Sojourn's autoscaler learns from.
    """

    profile: Profile
    objective: ServiceLevelObjective
    sla_rate_per_s: float
    start_time_s: float
    offered: FloatArray
    settings: AutoscalerSettings
    min_replicas: int = 1
    max_replicas: int = 1000
    starts: TwoTierStarts | None = None
    history: Trace | None = None


@dataclass(frozen=True)
class AutoscalerEntry:
    """An entry of the registry.

    Attributes
    ----------
    name : str
        Its name on the command line and in JSON.
    label, short_label : str
        Its name in tables: with the stock value, and with another value of the knob.
    rule : str
        How it decides, in one line.
    build : callable
        ``build(problem, value, **settings)`` builds one for a problem and a value of the knob; None
        where the stock value depends on the problem. Further settings are those of the published
        autoscaler, by their own names.
    knob : str
        Name of the knob; empty if it has none.
    stock : float or None
        The knob's value as published; None if that depends on the problem.
    curve : tuple of float
        Values of the knob for a curve of cost and compliance, from the fewest replicas to the most;
        empty if it has none.
    """

    name: str
    label: str
    short_label: str
    rule: str
    build: Callable[..., ScalingPolicy]
    knob: str = ""
    stock: float | None = None
    curve: tuple[float, ...] = ()

    def make(
        self, problem: ScalingProblem, value: float | None = None, **settings: float
    ) -> ScalingPolicy:
        """Return a new autoscaler for one run.

        Parameters
        ----------
        problem : ScalingProblem
        value : float, optional
            Value of the knob. None: the stock value.
        **settings : float
            Further settings of the published autoscaler.
        """
        return self.build(problem, self.stock if value is None else value, **settings)


def _sojourn(problem: ScalingProblem, compliant_minutes: float | None) -> ScalingPolicy:
    settings = problem.settings
    if compliant_minutes is not None:  # a fixed risk would override it
        if not 50 <= compliant_minutes <= 99.99:
            raise InvalidInputError(
                f"sojourn: compliant_minutes must be from 50 to 99.99, not {compliant_minutes:g}"
            )
        settings = replace(settings, compliant_minutes=compliant_minutes, risk=None)
    return SojournAutoscaler(
        settings,
        min_replicas=problem.min_replicas,
        max_replicas=problem.max_replicas,
        starts=problem.starts,
        history=problem.history,
    )


#: What a Ray sets that is to react at once to reports of every second.
_FAST_RAY = {"upscale_delay_s": 0.0, "look_back_period_s": 10.0, "metrics_interval_s": 1.0}


def _ray(problem: ScalingProblem, target: float, **settings: float) -> ScalingPolicy:
    given = {**_FAST_RAY, **settings} if settings else {}
    return RayDefault(RaySettings(target_ongoing_requests=target, **given))


def _knative(problem: ScalingProblem, target: float | None, **settings: float) -> ScalingPolicy:
    full_batch = problem.profile.best_batch_size
    return Knative(KnativeSettings(full_batch if target is None else target, **settings))


def _hpa(problem: ScalingProblem, share: float, **settings: Any) -> ScalingPolicy:
    return KubernetesHpa(HpaSettings(share * problem.sla_rate_per_s, **settings))


def _mdc(problem: ScalingProblem, headroom: float, look_back_s: float = 120) -> ScalingPolicy:
    return MdcSizing(problem.profile, problem.objective, headroom, int(look_back_s))


def _mark(problem: ScalingProblem, headroom: float) -> ScalingPolicy:
    return MarkProportional(problem.profile, problem.objective, problem.start_time_s, headroom)


def _mean(problem: ScalingProblem, share: float, interval_s: float = 60) -> ScalingPolicy:
    return MeanLatencySizing(problem.profile, problem.objective, share, int(interval_s))


def _p90(problem: ScalingProblem, share: float, **settings: Any) -> ScalingPolicy:
    return LatencyThresholds(problem.objective, share, **settings)


def _peak(problem: ScalingProblem, headroom: float, window_s: float = 60) -> ScalingPolicy:
    return PeakOfMinute(problem.sla_rate_per_s, headroom, int(window_s))


def _static(problem: ScalingProblem, count: float | None) -> ScalingPolicy:
    if count is None:
        return fixed_at_peak(problem.offered, problem.sla_rate_per_s)
    if count != int(count):
        raise InvalidInputError(f"autoscaler static: replicas must be a whole number, not {count}")
    return FixedFleet(int(count))


def _oracle(problem: ScalingProblem, _: None) -> ScalingPolicy:
    required = required_replicas_by_second(
        problem.offered, problem.sla_rate_per_s, max(1, problem.min_replicas)
    )
    return Clairvoyant(required, problem.start_time_s)


_COMPLIANT_MINUTES = (95.0, 98.0, 99.5, 99.9)
_CONCURRENCIES = (96.0, 48.0, 32.0, 24.0, 16.0, 8.0)
_HEADROOMS = (0.8, 1.0, 1.2, 1.5, 2.0, 3.0)
_RATE_SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.45, 0.3)
_LATENCY_SHARES = (1.0, 0.8, 0.65, 0.5, 0.4, 0.3)

_ENTRIES = (
    AutoscalerEntry(
        "sojourn",
        "Sojourn",
        "Sojourn",
        "the fewest replicas whose predicted service level meets the SLA, for the demand forecast "
        "over the time that a replica takes to start",
        _sojourn,
        knob="compliant_minutes",
        curve=_COMPLIANT_MINUTES,
    ),
    AutoscalerEntry(
        "ray",
        "Ray's default",
        "Ray",
        "Ray Serve's own policy: ongoing requests per replica, averaged and delayed; with further "
        "settings, it scales out without a delay",
        _ray,
        knob="target_ongoing_requests",
        stock=2.0,
        curve=_CONCURRENCIES,
    ),
    AutoscalerEntry(
        "knative",
        "Knative",
        "Knative",
        "concurrency per replica over a stable minute, with a panic window of six seconds",
        _knative,
        knob="concurrency_target",
        curve=_CONCURRENCIES,
    ),
    AutoscalerEntry(
        "hpa",
        "Kubernetes' HPA",
        "HPA",
        "requests per second of a pod, doubling at most every 15 s, scaling in after 300 s",
        _hpa,
        knob="target_share",
        stock=0.7,
        curve=_RATE_SHARES,
    ),
    AutoscalerEntry(
        "mdc",
        "M/D/c",
        "M/D/c",
        "the percentile of an M/D/c queue at the recent peak rate, as in Faro",
        _mdc,
        knob="headroom",
        stock=1.0,
        curve=_HEADROOMS,
    ),
    AutoscalerEntry(
        "mark",
        "MArk",
        "MArk",
        "in proportion to a predicted rate, with headroom, as in MArk",
        _mark,
        knob="headroom",
        stock=1.2,
        curve=_HEADROOMS,
    ),
    AutoscalerEntry(
        "mean",
        "Mean latency",
        "Mean latency",
        "a queueing model's mean latency at the rate of the last minute, as in llm-d",
        _mean,
        knob="target_share",
        stock=1.0,
        curve=_LATENCY_SHARES,
    ),
    AutoscalerEntry(
        "p90",
        "P90 thresholds",
        "P90 thresholds",
        "one replica more or fewer by thresholds on the 90th percentile, as in Dynamo",
        _p90,
        knob="upper_share",
        stock=1.0,
        curve=_LATENCY_SHARES,
    ),
    AutoscalerEntry(
        "peak",
        "Peak of the minute",
        "Peak",
        "enough for the busiest second of the last minute",
        _peak,
        knob="headroom",
        stock=1.0,
        curve=_HEADROOMS,
    ),
    AutoscalerEntry(
        "static",
        "Static at peak",
        "Static",
        "always enough for the busiest second of the trace, known in advance",
        _static,
        knob="replicas",
    ),
    AutoscalerEntry(
        ORACLE,
        "Oracle",
        "Oracle",
        "knows the trace and the start times: the cheapest fleet that has enough replicas for the "
        "requests of every second",
        _oracle,
    ),
)

#: All autoscalers by name.
AUTOSCALERS: Mapping[str, AutoscalerEntry] = MappingProxyType(
    {entry.name: entry for entry in _ENTRIES}
)
