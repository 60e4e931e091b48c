"""Records of the live engine: answers, refusals, and the work and energy of its replicas."""

from autoscaler.simulator.engines.counters import FleetCounters
from autoscaler.simulator.engines.interface import AnsweredRequest, FleetWork, ReplicaModel
from autoscaler.simulator.engines.kernel import bin_of
from autoscaler.simulator.engines.live_replica import LiveReplica, Message


class LiveRecords:
    """The counters of a fleet, and an optional log of its requests.

    Parameters
    ----------
    model : ReplicaModel
    counters : FleetCounters
        Takes the counts by the second, and the response times.
    log_requests : bool
        Whether to keep a log of the answered requests.

    Attributes
    ----------
    refused : int
        Requests refused by every try.
    loops_busy_s : float
        Time for which the event loops were at work.
    """

    def __init__(self, model: ReplicaModel, counters: FleetCounters, *, log_requests: bool) -> None:
        self.refused = 0
        self.loops_busy_s = 0.0
        self._energy_mj, self._idle_power_w = model.energy_mj, model.idle_power_w
        self._at_client, self._at_replica = model.objective, model.objective_at_replica
        self._reply_delay_s = 1e-3 * model.delays.reply_delay_ms
        self._counters = counters
        self._log: list[AnsweredRequest] | None = [] if log_requests else None
        self._batches = 0
        self._devices_busy_s = 0.0

    def answer(self, now_s: float, replica: LiveReplica, message: Message) -> None:
        """Answer a request."""
        response_ms = 1e3 * (now_s + self._reply_delay_s - message.sent_s)
        self._counters.histogram[bin_of(response_ms)] += 1
        if not self._at_client.is_late(response_ms):
            self._counters.in_time[int(message.sent_s)] += 1
        if self._at_replica.is_late(1e3 * (now_s - message.reached_s)):
            replica.late += 1
        replica.completed += 1
        if self._log is not None:
            size, attempts = message.batch_size, message.attempts
            self._log.append(AnsweredRequest(message.sent_s, response_ms, size, attempts))

    def give_up(self, message: Message) -> None:
        """Count a request that no replica answers."""
        self._counters.refused[int(message.sent_s)] += 1
        self.refused += 1

    def batch_started(self, now_s: float, size: int, batch_s: float) -> None:
        """Count a batch, and its energy beyond that of an idle device."""
        self._batches += 1
        self._devices_busy_s += batch_s
        if self._energy_mj is not None:
            energy_j = self._counters.energy_j
            second = min(int(now_s), energy_j.size - 1)
            energy_j[second] += 1e-3 * self._energy_mj[size - 1]
            energy_j[second] -= self._idle_power_w * batch_s

    def work(self) -> FleetWork:
        """Return the total work of all replicas so far."""
        return FleetWork(self._batches, self._devices_busy_s, self.loops_busy_s)

    def request_log(self) -> list[AnsweredRequest]:
        """Return the answered requests by the time they were sent; empty without a log."""
        return sorted(self._log or [])
