"""The load that a replica takes under its SLA, as the autoscaler is told."""

from dataclasses import dataclass

from autoscaler.reports import curve_to_floats
from deployments.config.user_config import SLAConfig
from policy.load_lateness import LoadLatenessCurve


@dataclass(frozen=True)
class SlaCapacity:
    """A replica's load-lateness curve, together with the SLA that it was solved for.

    The two change together: a curve says nothing about another SLA. Until the curve of a changed
    SLA is solved, which takes a second or two, the fleet stays sized for the old SLA.

    Attributes
    ----------
    sla : SLAConfig
        The SLA that the client sees.
    curve : LoadLatenessCurve or None
        None while it is not solved, or if no arrival rate meets the SLA.
    out_of_reach : bool
        Whether it is known that no arrival rate meets the SLA.
    """

    sla: SLAConfig
    curve: LoadLatenessCurve | None = None
    out_of_reach: bool = False

    def to_floats(self) -> dict[str, float]:
        """Return the fields that `autoscaler.reports.ReplicaReport.from_floats` reads."""
        return {
            "sla_response_time_ms": self.sla.response_time_ms,
            "sla_percentile": self.sla.percentile,
            **curve_to_floats(self.curve, out_of_reach=self.out_of_reach),
        }
