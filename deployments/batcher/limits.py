"""The limits of a batcher, live and simulated. Only `limits_for` derives them from an SLA."""

from collections.abc import Sequence
from dataclasses import dataclass

from policy.objective import ServiceLevelObjective
from policy.profile import Profile

#: Rows: even on the fastest device, a longer queue is a sign of a mistake.
MAX_WAITING_ROOM = 4096
#: A request is admitted beyond the waiting room if it will be done within this share of the SLA's
#: response time. The rest covers parsing, the network, and batches that take a little longer.
ADMISSION_SHARE = 0.97


@dataclass(frozen=True)
class Limits:
    """The bounds on a batcher besides its policy.

    Attributes
    ----------
    max_age_ms : float
        At this age of the oldest request a free device starts, whatever the policy says.
    waiting_room : int
        Rows that may wait, not counting those on the device.
    latency_ms : sequence of float
        Batch latency; entry ``b - 1`` is for batch size ``b``. Used to check deadlines.
    head_start_ms : float
        A high-priority request is queued as if it had arrived this much earlier.
    admit_within_ms : float
        Rows beyond the waiting room are admitted if they will be done within this time; 0 admits
        none.
    """

    max_age_ms: float
    waiting_room: int
    latency_ms: Sequence[float]
    head_start_ms: float = 0.0
    admit_within_ms: float = 0.0


def limits_for(
    profile: Profile,
    sla: ServiceLevelObjective,
    *,
    waiting_room: int | None = None,
    max_age_ms: float | None = None,
    admits_beyond_room: bool = True,
) -> Limits:
    """Return the limits that keep an SLA on a device.

    The waiting room is sized so that the last request that fits waits for the batch on the device
    and for the rows ahead of it, and is still in time. A request that does not fit is refused at
    once; HAProxy tries another replica.

    Parameters
    ----------
    profile : Profile
        The device's profile.
    sla : ServiceLevelObjective
        The SLA that the client sees.
    waiting_room : int, optional
        An explicit waiting room, in rows; a hard limit. By default, the rows of the full batches
        that fit into the response time after the batch on the device, at least one full batch.
    max_age_ms : float, optional
        By default, the response time less the latency of a full batch.
    admits_beyond_room : bool
        Whether a request that finds no room may still wait if it will be done in time, as is
        possible shortly before a batch ends. Simulated replicas do not admit such requests.

    Returns
    -------
    Limits
    """
    full_ms = float(profile.latency_ms[-1])
    response_time_ms = sla.response_time_ms
    explicit = waiting_room is not None
    if waiting_room is None:
        batches = max(1, int(response_time_ms / full_ms) - 1)
        waiting_room = min(batches * profile.max_batch_size, MAX_WAITING_ROOM)
    if max_age_ms is None:
        max_age_ms = max(0.0, response_time_ms - full_ms)
    admits = admits_beyond_room and not explicit
    return Limits(
        max_age_ms=max_age_ms,
        waiting_room=waiting_room,
        latency_ms=profile.latency_ms.tolist(),
        head_start_ms=response_time_ms,
        admit_within_ms=ADMISSION_SHARE * response_time_ms if admits else 0.0,
    )
