"""Totals of requests and batches since the start, for Triton's extension for statistics.

Clients such as perf_analyzer read the queueing and compute times from them. The form is that of the
`statistics extension
<https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_statistics.md>`_.
"""

import time
from collections import Counter
from typing import Any

Duration = dict[str, int]


class BatchTotals:
    """The batches that a model computed, by their size in rows."""

    def __init__(self) -> None:
        self.batches: Counter[int] = Counter()
        self.duration_ns: Counter[int] = Counter()

    def add(self, size: int, duration_s: float) -> None:
        self.batches[size] += 1
        self.duration_ns[size] += round(1e9 * duration_s)


class RequestTotals:
    def __init__(self) -> None:
        self._answered = self._rows = self._failed = 0
        self._answered_s = self._failed_s = 0.0
        self._last_s: float | None = None

    def answered(self, rows: int, arrival_s: float) -> None:
        self._last_s = time.monotonic()
        self._answered += 1
        self._rows += rows
        self._answered_s += self._last_s - arrival_s

    def failed(self, arrival_s: float, requests: int = 1) -> None:
        self._failed += requests
        self._failed_s += requests * (time.monotonic() - arrival_s)

    def describe(self, name: str, version: str, batches: BatchTotals) -> dict[str, Any]:
        """Return the statistics of a model, in the form of Triton's extension.

        The compute time of a request is that of its batch; requests of several rows count as the
        mean request. The rest of its time, including reading, checking and writing, is queueing
        time.
        """
        computed_ns = sum(size * batches.duration_ns[size] for size in batches.batches)
        computed_ns = round(computed_ns * self._answered / max(self._rows, 1))
        response_ns = round(1e9 * self._answered_s)
        computed_ns = min(computed_ns, response_ns)
        none = _duration(0, 0)
        # perf_analyzer requires an entry for inputs and outputs, whatever their time.
        copied = _duration(self._answered, 0)
        return {
            "name": name,
            "version": version,
            "last_inference": self._last_inference_ms(),
            "inference_count": self._rows,
            "execution_count": batches.batches.total(),
            "inference_stats": {
                "success": _duration(self._answered, response_ns),
                "fail": _duration(self._failed, round(1e9 * self._failed_s)),
                "queue": _duration(self._answered, response_ns - computed_ns),
                "compute_input": copied,
                "compute_infer": _duration(self._answered, computed_ns),
                "compute_output": copied,
                "cache_hit": none,
                "cache_miss": none,
            },
            "batch_stats": [
                {
                    "batch_size": size,
                    "compute_input": _duration(count, 0),
                    "compute_infer": _duration(count, batches.duration_ns[size]),
                    "compute_output": _duration(count, 0),
                }
                for size, count in sorted(batches.batches.items())
            ],
        }

    def _last_inference_ms(self) -> int:
        """Return the time of the last answer, in ms since 1970; 0 if there was none."""
        if self._last_s is None:
            return 0
        return round(1e3 * (time.time() - time.monotonic() + self._last_s))


def _duration(count: int, total_ns: int) -> Duration:
    return {"count": count, "ns": total_ns}
