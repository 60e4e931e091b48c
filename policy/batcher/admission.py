"""Which requests may wait: those that can be answered in time."""

import math

from policy.batcher.limits import Limits

_MAX_REFUSED_SHARE = 0.999
#: A batch is overdue once it is later than it should end by this share of a full batch's latency;
#: then it is expected to take so many times longer than it is late.
OVERDUE_SHARE, OVERDUE_FACTOR = 0.5, 2.0


class Admission:
    """The rule by which a replica refuses requests that are still in time."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        # Shares of the recent rows: refused, and refused whatever they may have lost elsewhere.
        self._refused_share = self._refused_anyway_share = 0.0
        #: Whether the latest request was refused only for what it may have lost elsewhere.
        self._refused_for_lost_time = False

    def admits(
        self,
        rows: int,
        *,
        queued: int,
        ahead: int,
        behind: int = 0,
        device_free_s: float | None,
        now_s: float,
        arrival_s: float,
    ) -> bool:
        """Return whether `rows` more rows may wait: there is room, and they will be done in time.

        A request that is larger than the waiting room, or that takes too long on an idle device,
        may wait if nothing else does: it would never be served otherwise. Suspected rows have a
        room of their own, of the same size: they must not keep out the requests that fill up their
        tests.

        Parameters
        ----------
        queued, ahead : int
            Rows in the queue for ordinary batches that go before them; all that do.
        behind : int
            Rows in that queue that they overtake, but which may fill up their last batch.
        device_free_s : float or None
            When the batch on the device will be done. None: there is none.
        now_s, arrival_s : float
            Time, and when the request reached the replica, from which its time counts.
        """
        limits = self.limits
        self._refused_for_lost_time = False
        if queued and queued + rows > limits.max_queue_rows:
            return False
        if limits.admit_within_ms == math.inf:
            return True
        if not ahead and not behind and device_free_s is None:
            alone_ms = self.processing_ms(rows)
            left_ms = limits.admit_within_ms - 1e3 * (now_s - arrival_s)
            if alone_ms <= limits.admit_within_ms:
                return alone_ms <= left_ms
            return not self.is_expired(rows, now_s, arrival_s)
        done = self.rows_done(rows, ahead, behind, device_free_s)
        if not ahead and self.processing_ms(done) > limits.admit_within_ms:
            return not self.is_expired(rows, now_s, arrival_s)
        done_s = self.completion_s(done, now_s, device_free_s)
        if done_s > arrival_s + 1e-3 * limits.admit_within_ms:
            return False
        within_ms = limits.admit_within_ms - self._time_lost_in_attempts_ms()
        self._refused_for_lost_time = done_s > arrival_s + 1e-3 * within_ms
        return not self._refused_for_lost_time

    def rows_done(self, rows: int, ahead: int, behind: int, device_free_s: float | None) -> int:
        """Return the rows that will be done when a request of `rows` rows is.

        Later arrivals may fill up the last batch while the device is busy, so it counts as full. An
        idle device need not wait for them, but takes along the rows that are overtaken.
        """
        done, size = ahead + rows, self.limits.max_batch_size
        return done if device_free_s is None and not behind else -(-done // size) * size

    def is_expired(self, rows: int, now_s: float, arrival_s: float) -> bool:
        """Return whether a request waited so long to be read that a free device is too late."""
        done_s = now_s + 1e-3 * self.limits.batch_latency_ms(rows)
        return arrival_s < min(now_s, done_s - 1e-3 * self.limits.answer_within_ms)

    def completion_s(self, rows: int, now_s: float, device_free_s: float | None) -> float:
        """Return when `rows` rows can be expected, in batches of the largest size."""
        start_s = now_s if device_free_s is None else max(now_s, device_free_s)
        if device_free_s is not None and now_s > device_free_s + self.tolerance_s:
            start_s += OVERDUE_FACTOR * (now_s - device_free_s)
        return start_s + 1e-3 * self.processing_ms(rows)

    def is_overdue(self, device_free_s: float | None, now_s: float) -> bool:
        """Return whether the batch on the device is so late that nothing else will be in time."""
        if device_free_s is None or now_s <= device_free_s:
            return False
        done_s = self.completion_s(1, now_s, device_free_s)
        return done_s > now_s + 1e-3 * self.limits.admit_within_ms

    @property
    def tolerance_s(self) -> float:
        """How late a batch may be before it is overdue."""
        return 1e-3 * OVERDUE_SHARE * self.limits.latency_ms[-1]

    def processing_ms(self, rows: int) -> float:
        """Return how long the device takes for `rows` rows, in batches of the largest size."""
        latency_ms = self.limits.latency_ms
        batches, rest = divmod(rows, len(latency_ms))
        return batches * latency_ms[-1] + (latency_ms[rest - 1] if rest else 0.0)

    def count_refused(self, rows: int, weight: float) -> None:
        """Record that `rows` rows were refused, of `weight` rows that count."""
        self._count(rows, weight, 1.0, 0.0 if self._refused_for_lost_time else 1.0)
        self._refused_for_lost_time = False

    def count_admitted(self, rows: int, weight: float) -> None:
        self._count(rows, weight, 0.0, 0.0)

    def _count(self, rows: int, weight: float, refused: float, refused_anyway: float) -> None:
        self._refused_share += (refused - self._refused_share) * rows / weight
        self._refused_anyway_share += (refused_anyway - self._refused_anyway_share) * rows / weight

    def _time_lost_in_attempts_ms(self) -> float:
        """Return the time to set aside for what requests have lost in attempts elsewhere.

        None is, unless more requests are refused than may be late even without it: otherwise a
        replica that once set time aside might go on refusing for it at any load.
        """
        if self._refused_anyway_share <= self.limits.late_share_allowed:
            return 0.0
        return time_lost_in_attempts_ms(self.limits, self._refused_share)


def time_lost_in_attempts_ms(limits: Limits, refused_share: float) -> float:
    """Return what nearly all requests have lost at most, being refused elsewhere before.

    A replica cannot see for how long a request has been tried. If all replicas refuse the share p
    that this one does, a request comes after j refusals or more with probability p^j: j is such
    that no more come later than may be late. At most half of the time between a full batch's
    latency and the limit is set aside.
    """
    if refused_share <= limits.late_share_allowed:
        return 0.0
    share = min(refused_share, _MAX_REFUSED_SHARE)
    attempts = math.log(limits.late_share_allowed) / math.log(share)
    spare_ms = max(0.0, limits.admit_within_ms - limits.latency_ms[-1])
    return min(limits.try_ms * min(attempts, limits.retries), spare_ms / 2)
