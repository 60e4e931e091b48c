"""The response time under any table of actions (docs/response_times.md, section 7)."""

import numpy as np
from numpy.typing import NDArray

from policy.response_time.age_grid import AgeGrid, AgesOnGrid
from policy.response_time.distribution import AgesAtStart, ResponseTimeDistribution
from policy.response_time.quadrature import Panels
from policy.response_time.table_chain import TableChain
from policy.response_time.table_requests import (
    NEGLIGIBLE,
    ArrivalsInBatch,
    RequestsAtBatchEnd,
    follow_requests,
)
from policy.response_time.waits import (
    WaitForArrivals,
    WaitForArrivalsOrTimer,
    WaitForNextArrival,
)

FloatArray = NDArray[np.float64]


# Waits that end at a longer queue than this take too long for every quadrature point: their ages go
# on a grid of so many points.
_MAX_EXACT_START, _MAX_AGES = 32, 64


class TableResponse(ResponseTimeDistribution):
    """The distribution of the response time under a table of actions."""

    def __init__(self, chain: TableChain) -> None:
        super().__init__()
        self._system = chain.system
        self._timed = bool(np.isfinite(chain.system.max_wait_ms))
        arrivals = ArrivalsInBatch.of(chain)
        far = arrivals.in_full_batches(chain)
        if far is not None:
            self.components.append(far)
        for requests in follow_requests(chain, arrivals):
            self._count_started_at_once(requests)
            if self._timed:
                for length, counts in requests.oldest_waiting(chain.system):
                    self._count_timed_wait(length, requests.ages_ms, counts)
            else:
                self._count_waiting(requests)
        self._count_arrivals_at_free_device(chain.at_batch_end())
        self.close()

    def _count_started_at_once(self, requests: RequestsAtBatchEnd) -> None:
        """Count requests that the batch started at this end takes."""
        k = np.arange(1, requests.batch_sizes.shape[0] + 1)[:, None]
        served = requests.batch_sizes >= k
        sizes = np.unique(requests.batch_sizes[served])
        if sizes.size:
            rows = [
                requests.density[served & (requests.batch_sizes == size)].sum(axis=0)
                for size in sizes
            ]
            times = self._system.batch_times_ms[sizes - 1]
            ages: AgesAtStart | AgesOnGrid
            if isinstance(requests.panels, AgeGrid):
                ages = AgesOnGrid(requests.panels, times, np.array(rows))
            else:
                shape = (sizes.size, *requests.panels.nodes_ms.shape)
                ages = AgesAtStart(requests.panels, times, np.array(rows).reshape(shape))
            if ages.count > NEGLIGIBLE:
                self.components.append(ages)

    def _count_waiting(self, requests: RequestsAtBatchEnd) -> None:
        """Count requests at whose queue length the device waits, without a timer."""
        for length, start in self._system.start_length.items():
            here = (requests.queue_lengths == length) & (requests.batch_sizes == 0)
            density = requests.density[here].sum(axis=0)
            if start - length == 1 and isinstance(requests.panels, Panels):
                time_ms = float(self._system.batch_times_ms[start - 1])
                rate = self._system.arrival_rate
                wait = WaitForNextArrival(rate, requests.panels, density, time_ms)
                self.components.append(wait)
            else:
                counts = requests.counts(density)
                self._count_wait(requests.ages_ms, counts, start - length, start)

    def _count_arrivals_at_free_device(self, at_end: FloatArray) -> None:
        """Count requests that arrive while the device waits, and are in no queue at a batch's end.

        With a timer, those behind an oldest request are counted with it (`_count_timed_wait`).
        """
        for length, start in self._system.start_length.items():
            if length >= at_end.size:
                continue
            count = np.array([at_end[length]])
            if length == 0 and start == 1:
                self.atoms.append((float(self._system.batch_times_ms[0]), at_end[0]))
            elif length == 0 and self._timed:
                self._count_timed_wait(1, np.zeros(1), count)
            elif not self._timed:
                for missing in range(start - length):
                    self._count_wait(np.zeros(1), count, missing, start)

    def _count_wait(self, ages: FloatArray, counts: FloatArray, missing: int, start: int) -> None:
        """Count requests whose batch of `start` starts after `missing` more arrivals."""
        time_ms = float(self._system.batch_times_ms[start - 1])
        if missing == 0:
            self.atoms.append((time_ms, float(counts.sum())))
        elif counts.sum() > NEGLIGIBLE:
            rate = self._system.arrival_rate
            self.components.append(WaitForArrivals(rate, ages, counts, missing, time_ms))

    def _count_timed_wait(self, length: int, ages: FloatArray, counts: FloatArray) -> None:
        """Count the requests of a queue whose oldest waits, or has waited long enough."""
        if counts.sum() <= NEGLIGIBLE:
            return
        system = self._system
        expired = (ages >= system.max_wait_ms) & (counts > 0)
        time_ms = float(system.batch_times_ms[length - 1])
        for age, count in zip(ages[expired], counts[expired], strict=True):
            self.atoms.append((age + time_ms, count))
            if length > 1:
                self.uniforms.append((time_ms, age, (length - 1) * count))
        running = ~expired & (counts > 0)
        if np.any(running):
            start = system.start_length[length]
            ages, counts = ages[running], counts[running]
            if start > _MAX_EXACT_START and ages.size > _MAX_AGES:
                grid = AgeGrid(system.max_wait_ms / _MAX_AGES, _MAX_AGES)
                ages, counts = grid.nodes_ms, grid.deposit(ages, counts)
            self.components.append(WaitForArrivalsOrTimer(system, ages, counts, length, start))
