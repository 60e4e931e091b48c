"""The response time under a control limit, where batch times vary.

Requests are counted on a lattice of times, by their age when their own batch starts and by the size
of that batch. A convolution with the batch's time gives the response times
(docs/response_times.md, section 8).
"""

import numpy as np
from numpy.typing import NDArray
from scipy import fft
from scipy.special import gammainccinv, pdtrc

from policy.probability import convolve, poisson_table
from policy.response_time.distribution import ResponseTimeDistribution
from policy.response_time.random_chain import RandomTimesChain

FloatArray = NDArray[np.float64]

_NEGLIGIBLE = 1e-10
# Where long response times fall as exp(-θ t), the lattice ends at this many 1/θ beyond a batch,
# and in any case at this many nodes; the rest is exponential.
_LOG_TAIL, _MAX_NODES = 16.0, 2**14
# Batch times end at this many standard deviations, where the number of batches is bounded.
_MAX_DEVIATIONS = 8.0
# Fourier transforms are periodic: what lies beyond the lattice comes back damped by exp(-_DAMPING).
_DAMPING = 12.0


class LatticeCount:
    """Requests counted at the nodes of a lattice of response times, and an exponential tail.

    The count is taken to rise linearly between the nodes, by half of each node's before it and by
    half after it.

    Attributes
    ----------
    count, total_response_ms : float
        See `ResponseTimeCount`.
    """

    def __init__(
        self, step_ms: float, counts: FloatArray, tail: float, tail_decay_per_ms: float
    ) -> None:
        self._times_ms = step_ms * np.arange(counts.size + 1)
        self._end_ms = step_ms * (counts.size - 0.5)
        self._within = np.append(np.cumsum(counts) - counts / 2, counts.sum())
        self._tail, self._decay = tail, tail_decay_per_ms
        self.count = float(counts.sum()) + tail
        self.total_response_ms = float(counts @ self._times_ms[:-1])
        if tail:
            self.total_response_ms += tail * (self._end_ms + 1 / tail_decay_per_ms)

    def count_within(self, response_time_ms: FloatArray) -> FloatArray:
        """Count the requests with at most each response time, shapes (times,)."""
        count = np.interp(response_time_ms, self._times_ms, self._within)
        if self._tail:
            beyond = np.maximum(response_time_ms - self._end_ms, 0.0)
            count = count - self._tail * np.expm1(-self._decay * beyond)
        return np.asarray(count)


class RandomTimesResponse(ResponseTimeDistribution):
    """The distribution of the response time under a control limit, where batch times vary."""

    def __init__(self, chain: RandomTimesChain) -> None:
        super().__init__()
        self._chain = chain
        self._system = system = chain.system
        self._positions, self._block_ratio = self._positions_followed()
        self._blocks = max(1, -(-self._positions // system.max_batch_size))
        nodes = self._lattice_nodes()
        self._ages_ms = system.step_ms * np.arange(nodes)
        self._damping = np.exp(-_DAMPING / nodes * np.arange(nodes))
        times = system.time_probabilities[:, :nodes]
        self._times_transformed = self._transform(times.T)
        # Requests by the size of their batch (row b - 1) and their age when it starts.
        self._ages = np.zeros((system.max_batch_size, nodes))
        timer_running = self._count_started_at_once()
        self._count_started_after_a_wait(timer_running)
        transformed = self._transform(self._ages.T)
        transformed = np.sum(transformed * self._times_transformed, axis=1, keepdims=True)
        counts = self._transform_back(transformed)[:, 0]
        tail, decay = 0.0, 1.0
        if system.waiting_room is None:
            decay = system.delay_decay_per_ms
            last = nodes // 32 + 1
            fall = np.exp(-decay * system.step_ms * last)
            tail = float(counts[-last:].sum() * fall / (1 - fall))
        self.components.append(LatticeCount(system.step_ms, counts, tail, decay))
        self.close()

    def _positions_followed(self) -> tuple[int, float]:
        """Return how many positions in the queue are followed, and how those beyond go on.

        Beyond, the counts of a block are those of the one before times a ratio, as queue lengths
        are geometric; 0 if there is nothing beyond.
        """
        system, longest = self._system, self._chain.longest
        if system.waiting_room is not None:
            return system.waiting_room, 0.0
        _, geometric = system.queue_lengths_solved()
        arrivals = system.arrival_rate * float(system.times_ms[-1])
        end = geometric + int(arrivals + _MAX_DEVIATIONS * np.sqrt(arrivals)) + 20
        end += -end % system.max_batch_size
        if end >= longest:
            return longest, 0.0
        return end, float(np.exp(-system.decay_per_request * system.max_batch_size))

    def _lattice_nodes(self) -> int:
        """Return how many nodes response times are counted on."""
        system = self._system
        longest_batch_ms = float(system.times_ms[-1])
        batches = self._chain.longest // system.max_batch_size + 2
        if system.waiting_room is not None:
            batches = self._blocks + 1
        end_ms = batches * system.full_batch_ms + longest_batch_ms
        end_ms += _MAX_DEVIATIONS * system.full_batch_deviation_ms * np.sqrt(batches)
        if system.waiting_room is None:
            tail_ms = _LOG_TAIL / system.delay_decay_per_ms
            end_ms = min(end_ms, 2 * longest_batch_ms + tail_ms)
        wait_ms = self._longest_wait_ms()
        nodes = int(min(max(end_ms, 0.0) / system.step_ms, _MAX_NODES))
        nodes += int((wait_ms + longest_batch_ms) / system.step_ms) + 2
        return int(fft.next_fast_len(nodes, real=True))

    def _longest_wait_ms(self) -> float:
        """Return the longest wait at a free device, but for a negligible probability."""
        limit, rate = self._system.control_limit, self._system.arrival_rate
        if limit == 1:
            return 0.0
        return min(self._system.max_wait_ms, float(gammainccinv(limit - 1, _NEGLIGIBLE)) / rate)

    def _arriving(self, sure: int) -> tuple[FloatArray, FloatArray]:
        """Count arrivals by the time left of their batch and their position in the queue (30).

        Parameters
        ----------
        sure : int
            From this block of positions on, requests are surely served in a full batch.

        Returns
        -------
        by_position : ndarray, shape (nodes, sure, max_batch_size)
        by_block : ndarray, shape (nodes, blocks - sure)
            Beyond, summed over the positions of each block.
        """
        chain, system = self._chain, self._system
        size, blocks = system.max_batch_size, self._blocks
        alone = min(size, chain.longest)
        positions = self._positions
        came = system.arrivals_since_start(positions)
        short = chain.probabilities[:alone] @ system.time_probabilities[:alone]
        left_over = np.concatenate(([0.0], chain.probabilities[size:]))[:positions]
        after_full = convolve(came, left_over)[:, :positions]

        def columns(values: FloatArray) -> FloatArray:
            padded = np.zeros((values.shape[0], blocks * size))
            padded[:, : values.shape[1]] = values
            beyond = padded[:, sure * size :].reshape(len(values), blocks - sure, size)
            return np.concatenate((padded[:, : sure * size], beyond.sum(axis=-1)), axis=1)

        length = fft.next_fast_len(2 * system.nodes, real=True)
        arriving = fft.rfft(short, length)[:, None] * np.conj(
            fft.rfft(columns(came), length, axis=0)
        )
        arriving += fft.rfft(system.time_probabilities[-1], length)[:, None] * np.conj(
            fft.rfft(columns(after_full), length, axis=0)
        )
        counts = fft.irfft(arriving, length, axis=0)[: system.nodes]
        counts *= (system.arrival_rate * system.integration_weights_ms(system.nodes))[:, None]
        by_position = counts[:, : sure * size].reshape(system.nodes, sure, size)
        return by_position, counts[:, sure * size :]

    def _count_started_at_once(self) -> FloatArray:
        """Count the requests whose batch starts at the very end of another, (10) and (11).

        Returns
        -------
        ndarray of float, shape (nodes,)
            The oldest request at the end of a batch, where its timer still runs, by its age.
        """
        system, ages, nodes = self._system, self._ages_ms, self._ages_ms.size
        size, limit, d = system.max_batch_size, system.control_limit, system.max_wait_ms
        rate, room = system.arrival_rate, system.waiting_room
        sure = self._blocks if room is not None else self._first_sure_block()
        if room == 0:
            return np.zeros(nodes)
        by_position, by_block = self._arriving(sure)
        used = min(system.nodes, nodes)
        full = self._times_transformed[:, -1:]
        # The last block of a waiting room: some that came behind a request were refused.
        limited = room is not None and room > size and room % size != 0
        last = sure - 1 if limited else sure
        at_end = np.zeros((nodes, size))
        if last:
            transformed = np.zeros((nodes // 2 + 1, size), dtype=complex)
            for block in range(last - 1, -1, -1):
                transformed *= full
                transformed += self._transform(by_position[:used, block])
            at_end = self._transform_back(transformed)
        if by_block.shape[1]:
            blocks_transformed = self._transform(by_block[:used])
            batches = sure + np.arange(by_block.shape[1])
            waited = blocks_transformed * full**batches
            waited[:, -1:] /= 1 - self._block_ratio * full  # all blocks from the last one on
            self._ages[-1] += self._transform_back(waited.sum(axis=1, keepdims=True))[:, 0]
        largest = size if room is None else min(size, room)
        behind = poisson_table(largest, rate * ages)
        lengths = convolve(at_end[:, :largest], behind)[:, : largest - 1]
        self._ages[limit - 1 : largest - 1] += lengths[:, limit - 1 :].T
        self._ages[largest - 1] += np.maximum(at_end.sum(axis=1) - lengths.sum(axis=1), 0.0)
        oldest = at_end[:, 0]
        if limited:
            oldest = oldest + self._count_last_block(by_position[:used, last], last)
        if limit == 1:
            return np.zeros(nodes)
        # A node at the max wait itself stands for ages on both sides of it.
        running = np.clip((d - ages) / system.step_ms + 0.5, 0.0, 1.0)
        expired = (oldest * (1 - running))[:, None] * behind[:, : limit - 1]
        self._ages[: limit - 1] += expired.T
        self._count_uniform(expired * np.arange(limit - 1))
        return np.asarray(oldest * running)

    def _first_sure_block(self) -> int:
        """Return the first block of positions whose requests are surely served in full batches."""
        system = self._system
        # Chernoff's bound on the probability that fewer than a batch come during i batches.
        s = np.geomspace(1e-2, 30.0, 40)
        less = np.expm1(-s)[:, None] * (system.arrival_rate * system.times_ms)
        fall = -np.log(np.exp(less) @ system.time_probabilities[-1])
        blocks = (s * (system.max_batch_size - 1) - np.log(_NEGLIGIBLE)) / fall
        last = self._blocks - (self._block_ratio > 0)  # those beyond go on like the last one
        return int(min(np.ceil(blocks.min()), last))

    def _count_last_block(self, arriving: FloatArray, block: int) -> FloatArray:
        """Count requests at the end of a waiting room, behind whom some were refused.

        Parameters
        ----------
        arriving : ndarray of float, shape (nodes, max_batch_size)
            By the time left of the batch in which they arrived.
        block : int
            Full batches until they are served.

        Returns
        -------
        ndarray of float, shape (nodes,)
            The oldest at the end of a batch, by its age.
        """
        system, nodes, ages = self._system, self._ages_ms.size, self._ages_ms
        size, limit, rate = system.max_batch_size, system.control_limit, system.arrival_rate
        assert system.waiting_room is not None
        width = system.waiting_room - block * size
        here = arriving[:, :width]
        # The block's requests at the end of their batch: those behind fill it at most.
        filled = convolve(here, poisson_table(width, rate * ages[: here.shape[0]]))[:, :width]
        filled[:, -1] = np.maximum(here.sum(axis=1) - filled[:, :-1].sum(axis=1), 0.0)
        waits_hat = self._times_transformed[:, -1:] ** block
        joined = fft.irfft(waits_hat, nodes, axis=0) * poisson_table(size - 1, rate * ages)
        filled_hat = self._transform(filled)
        joined_hat = fft.rfft(joined, axis=0)
        lengths_hat = np.zeros((filled_hat.shape[0], size - 1), dtype=complex)
        for taken in range(min(width, size - 1)):
            lengths_hat[:, taken:] += filled_hat[:, taken, None] * joined_hat[:, : size - 1 - taken]
        lengths = self._transform_back(lengths_hat)
        both = np.stack((here.sum(axis=1), here[:, 0]), axis=1)
        everyone, oldest = self._transform_back(self._transform(both) * waits_hat).T
        self._ages[limit - 1 : size - 1] += lengths[:, limit - 1 :].T
        self._ages[-1] += np.maximum(everyone - lengths.sum(axis=1), 0.0)
        return np.asarray(oldest)

    def _count_started_after_a_wait(self, timer_running: FloatArray) -> None:
        """Count the requests whose batch starts after the device has been free, (14) to (16)."""
        chain, system, ages = self._chain, self._system, self._ages_ms
        rate, limit, d = system.arrival_rate, system.control_limit, system.max_wait_ms
        alone = min(system.max_batch_size, chain.longest)
        by_time = chain.probabilities[:alone] @ system.time_probabilities[:alone]
        empty = 1.0
        if system.waiting_room != 0:
            empty = float(by_time @ np.exp(-rate * system.times_ms))
        if limit == 1:
            self._ages[0, 0] += empty
            return
        running = empty + np.cumsum(timer_running) - timer_running / 2
        # The control limit ends the wait within half a step of each node.
        half = system.step_ms / 2
        edges = np.minimum(np.append(ages - half, ages[-1] + half).clip(0.0), d)
        ended = np.diff(pdtrc(limit - 2, rate * edges)) * running
        self._ages[limit - 1] += ended
        self._ages[limit - 1, 0] += ended.sum()
        between = np.zeros((ages.size, system.max_batch_size))
        between[:, limit - 1] = (limit - 2) * ended
        if np.isfinite(d):
            node = round(d / system.step_ms)
            others = poisson_table(limit - 1, rate * d) * (empty + timer_running.sum())
            self._ages[: limit - 1, node] += others
            between[node, : limit - 1] += np.arange(limit - 1) * others
        self._count_uniform(between)

    def _count_uniform(self, counts: FloatArray) -> None:
        """Count requests whose ages are uniform between 0 and the age of a node.

        Parameters
        ----------
        counts : ndarray of float, shape (nodes, sizes)
            Column ``b - 1`` is for batches of ``b``.
        """
        per_node = counts / np.maximum(np.arange(counts.shape[0]), 1)[:, None]
        spread = np.cumsum(per_node[::-1], axis=0)[::-1] - per_node / 2
        spread[0] = counts[0] + (spread[0] - per_node[0] / 2) / 2
        self._ages[: counts.shape[1]] += spread.T

    def _transform(self, counts: FloatArray) -> NDArray[np.complexfloating]:
        """Return the Fourier transform of damped counts along axis 0."""
        damping = self._damping[: counts.shape[0], None]
        return np.asarray(fft.rfft(counts * damping, self._ages_ms.size, axis=0))

    def _transform_back(self, transformed: NDArray[np.complexfloating]) -> FloatArray:
        """Return the counts of a damped Fourier transform along axis 0; never negative."""
        counts = fft.irfft(transformed, self._ages_ms.size, axis=0) / self._damping[:, None]
        return np.asarray(np.maximum(counts, 0.0))
