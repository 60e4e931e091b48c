"""A replica's observations of its own batches and answers, and which answers are late."""

import logging
import random
import time
from array import array
from collections import deque
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from deployments.batcher.event_loop_meter import EventLoopCounts, EventLoopMeter
from deployments.batcher.model_runner import BatchRecord
from deployments.models.base import EnergyMeter
from policy.errors import InfeasibleError
from policy.objective import ServiceLevelObjective

logger = logging.getLogger("sojourn.service")

FloatArray = NDArray[np.float64]

#: Number of finished batches shown by `GET /sojourn/policy`.
BATCHES_SHOWN = 20
#: HAProxy's means are in whole ms: a difference of no more than this may be none.
_RESOLUTION_S = 1e-3
#: Reports without a mean after which the last proxy delay says nothing any more.
_FORGET_AFTER = 10


@dataclass(eq=False, slots=True)
class Observations:
    """A replica's observations between two ticks.

    `response_times_s` are of the requests answered; `ReplicaObserver` says which are counted.
    `proxy_delay_ms` is what requests wait in HAProxy, beyond the delay that the SLA allows for,
    `outward_delay_ms` of it before they reach the replica. Requests `refused_unread` were refused
    before they were parsed, `refusal_s` in all after they could first have been read. `energy_mj`
    is what the device's meter counted in the last `elapsed_s`; None without a meter.
    """

    batches: list[BatchRecord] = field(default_factory=list)
    response_times_s: FloatArray = field(default_factory=lambda: np.empty(0))
    late_answers: int = 0
    event_loop: EventLoopCounts | None = None
    shares_cpu: bool = False
    proxy_delay_ms: float = 0.0
    refused: int = 0
    energy_mj: float | None = None
    elapsed_s: float = 0.0
    outward_delay_ms: float = 0.0
    refused_unread: int = 0
    refusal_s: float = 0.0

    def sampled(self, most: int) -> "Observations":
        """Return the same with random samples of at most `most` batches and response times."""
        batches, times_s = self.batches, self.response_times_s
        if len(batches) > most:
            batches = random.sample(batches, most)
        if times_s.size > most:
            times_s = times_s[random.sample(range(times_s.size), most)]
        return replace(self, batches=batches, response_times_s=times_s)


class ProxyDelay:
    """The delay of requests in HAProxy: its mean time of a request, less the replica's own.

    HAProxy counts from when it has read a request until its answer begins; the replica, from when
    it could have read the request until the answer is known. What lies between is mainly waits for
    HAProxy's thread, before and after the replica, and tries at other replicas.
    """

    def __init__(self) -> None:
        self.delay_s = self.outward_s = 0.0
        self._response_times_s = 0.0
        self._requests = 0
        self._reports_without_mean = 0

    def answered(self, response_time_s: float) -> None:
        """Count a request that is not tried again, with its response time at the replica."""
        self._response_times_s += response_time_s
        self._requests += 1

    def update(self, mean_ms: float | None, allowed_ms: float, outward_ms: float = 0.0) -> None:
        """Compare HAProxy's mean time, if it is new, with that of the requests counted since.

        `allowed_ms` is the delay to the replica and back that the SLA allows for; for `outward_ms`
        of the mean HAProxy had no connection to the replica.
        """
        if mean_ms is None:
            self._reports_without_mean += 1
            if self._reports_without_mean >= _FORGET_AFTER:
                self.delay_s = self.outward_s = 0.0
            return
        self._reports_without_mean = 0
        if self._requests:
            own_s = self._response_times_s / self._requests
            delay_s = 1e-3 * (mean_ms - allowed_ms) - own_s
            self.delay_s = delay_s if delay_s > _RESOLUTION_S else 0.0
            self.outward_s = min(1e-3 * outward_ms, self.delay_s)
        self._response_times_s, self._requests = 0.0, 0


class ReplicaObserver:
    """Count answers, decide which are late, and collect what happens between ticks.

    An answer is late if its response time exceeds `sla`, the part of the SLA's response time that
    the way to the replica and back leaves. Requests without an answer count as follows:

    - A request that misses its own deadline is late if that deadline allowed at least the response
      time of `sla`; with a tighter deadline it is not counted.
    - A request whose client left is late if the client had waited longer than `sla` allows;
      otherwise it is not counted.
    - Other failed requests, refused ones included, are not counted.

    Response times count from when the request could first have been read. The delay in HAProxy is
    added to those since the last `take` when that is called next, as HAProxy reports it in arrears.
    """

    def __init__(
        self,
        sla: ServiceLevelObjective,
        event_loop_meter: EventLoopMeter | None = None,
        energy_meter: EnergyMeter | None = None,
    ) -> None:
        self.sla = sla
        self.energy_meter = energy_meter
        self._event_loop_meter = event_loop_meter
        self.proxy_delay = ProxyDelay()
        self.answered_rows = 0
        self.late_rows = 0
        self.device_busy_s = 0.0
        #: Energy used by the device since the first `take`; None without a meter.
        self.energy_j: float | None = None
        self._energy_read: tuple[float, float] | None = None
        self.last_batches: deque[tuple[float, BatchRecord]] = deque(maxlen=BATCHES_SHOWN)
        self._seen = Observations()
        #: Of the answers since the last `take`: response time, rows, whether it is late already.
        self._times_s, self._rows, self._late = array("d"), array("q"), bytearray()

    def batch_ended(self, record: BatchRecord) -> None:
        now_s = time.monotonic()
        if self._event_loop_meter is not None:
            forward = (record.duration_s, record.cpu_s) if record.on_loop else (0.0, 0.0)
            self._event_loop_meter.batch_ended(now_s, *forward)
        self._seen.batches.append(record)
        self.device_busy_s += record.duration_s
        self.last_batches.append((now_s, record))

    def answered(self, rows: int, response_time_s: float) -> None:
        """Count a request that was answered with outputs."""
        self.proxy_delay.answered(response_time_s)
        late = self.sla.is_late(1e3 * response_time_s)
        self._count(rows, response_time_s, late=late)

    def refused_unread(self, requests: int, after_s: float) -> None:
        """Count refusals, `after_s` in all after the requests could first have been read."""
        self._seen.refused_unread += requests
        self._seen.refusal_s += after_s

    def deadline_missed(self, rows: int, response_time_s: float, deadline_ms: float) -> None:
        """Count a request that was dropped for its own deadline, if that allowed the SLA's time."""
        self.proxy_delay.answered(response_time_s)
        if deadline_ms >= self.sla.response_time_ms:
            self._count(rows, response_time_s, late=True)

    def client_left(self, rows: int, waited_s: float) -> None:
        """Count a request whose client left before the answer, if it was late by then."""
        waited_s += self.proxy_delay.delay_s
        if self.sla.is_late(1e3 * waited_s):
            self._count(rows, waited_s, late=True)

    def _count(self, rows: int, response_time_s: float, *, late: bool) -> None:
        self._times_s.append(response_time_s)
        self._rows.append(rows)
        self._late.append(late)
        self.answered_rows += rows
        if late:
            self.late_rows += rows

    def _take_answers(self) -> tuple[FloatArray, int]:
        """Return the response times with the delay in HAProxy, and how many are late."""
        times_s: FloatArray = np.frombuffer(self._times_s)
        rows, late = np.frombuffer(self._rows, np.int64), np.frombuffer(self._late, np.bool_)
        self._times_s, self._rows, self._late = array("d"), array("q"), bytearray()
        if self.proxy_delay.delay_s:
            times_s = times_s + self.proxy_delay.delay_s
            late_now = 1e3 * times_s > self.sla.response_time_ms
            self.late_rows += int(rows[late_now & ~late].sum())
            late = late_now | late
        return times_s, int(np.count_nonzero(late))

    def _take_energy(self) -> tuple[float | None, float]:
        """Return the energy in mJ since the last call, and the time in s; None if not known."""
        if self.energy_meter is None:
            return None, 0.0
        try:
            read = (self.energy_meter.read_mj(), time.monotonic())
        except InfeasibleError as error:
            logger.warning("the energy is no longer measured: %s", error)
            self.energy_meter = self.energy_j = None
            return None, 0.0
        before, self._energy_read = self._energy_read or read, read
        energy_mj = read[0] - before[0]
        self.energy_j = (self.energy_j or 0.0) + 1e-3 * energy_mj
        return (energy_mj, read[1] - before[1]) if read is not before else (None, 0.0)

    def take(self, *, shares_cpu: bool = False, refused: int = 0) -> Observations:
        """Return what was observed since the last call."""
        seen, self._seen = self._seen, Observations()
        seen.response_times_s, seen.late_answers = self._take_answers()
        seen.energy_mj, seen.elapsed_s = self._take_energy()
        seen.shares_cpu, seen.refused = shares_cpu, refused
        seen.proxy_delay_ms = 1e3 * self.proxy_delay.delay_s
        seen.outward_delay_ms = 1e3 * self.proxy_delay.outward_s
        if self._event_loop_meter is not None:
            seen.event_loop = self._event_loop_meter.take()
        return seen
