"""The limits of a batcher, live and simulated: built here from the SLA, and nowhere else."""

from collections.abc import Sequence
from dataclasses import dataclass

from policy.objective import ServiceLevelObjective
from policy.profile import Profile

#: However fast a device is, a longer queue is a mistake somewhere.
MAX_WAITING_ROOM = 4096
#: Share of the SLA's response time within which a request must be done that waits beyond the room.
#: The rest is for parsing, the way back, and batches that take a little longer.
ADMISSION_SHARE = 0.97


@dataclass(frozen=True)
class Limits:
    """What bounds a batcher besides its policy.

    Attributes
    ----------
    max_age_ms : float
        No request is kept waiting for others beyond this age, whatever the policy says.
    waiting_room : int
        Rows that may wait, besides those on the device.
    latency_ms : sequence of float
        Time of a batch; entry ``b - 1`` is for batch size ``b``. What deadlines are judged by.
    head_start_ms : float
        What a request of high priority has ahead of a normal one.
    admit_within_ms : float
        Beyond the room, rows may wait if they would still be done within this; 0: none may.
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
    """Build the limits that keep an SLA on a device.

    The last request that finds room waits for the batch on the device and for the rows before it,
    and is still in time. A request beyond that is refused at once, and tried at another replica.

    Parameters
    ----------
    profile : Profile
        Of the device.
    sla : ServiceLevelObjective
        The client's.
    waiting_room : int, optional
        An explicit waiting room, a hard limit. None: the rows of the full batches that fit into
        the response time behind the one on the device, at least one full batch.
    max_age_ms : float, optional
        None: what a full batch leaves of the response time.
    admits_beyond_room : bool
        Whether a request that finds no room may still wait if it would be done in time, as shortly
        before a batch ends. The simulated replicas do not.
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
