"""Learn from a past load what watching it would have taught the forecasts.

A replica learns, in a worker process at its start, and stores the result in the cluster, where the
autoscaler finds it (`autoscaler.history.feed`). Replicas report the code of what they have stored.

A trace by the minute does not say how its requests came within the minute. They are taken to have
been a Poisson process, drawn with a fixed seed: without its noise, back-tests would ask for smaller
margins than the seconds need.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from autoscaler import worker
from autoscaler.forecasting.load_history import LoadHistory
from autoscaler.history.source import DAY_S, KEPT_DAYS, HistorySource
from autoscaler.history.traces import Trace
from policy.errors import InvalidInputError

FloatArray = NDArray[np.float64]

#: Seconds that are drawn and learned at a time.
_CHUNK_S = 3600
#: A process that takes longer hangs.
_TIMEOUT_S = 600.0


def learn(trace: Trace, late_share_allowed: float) -> LoadHistory:
    """Return the history that watching the last `KEPT_DAYS` of a trace would have made."""
    history = LoadHistory(late_share_allowed)
    for end_s, rates in _known_seconds(trace.last(KEPT_DAYS * DAY_S)):
        history.observe(float(end_s), rates)
    return history


def _known_seconds(trace: Trace) -> Iterator[tuple[int, FloatArray]]:
    """Yield the end and the rates of spans without a gap, of at most an hour each."""
    random = np.random.default_rng(0)
    steps = _CHUNK_S // trace.step_s
    for begin in range(0, trace.counts.size, steps):
        counts = trace.counts[begin : begin + steps]
        begin_s = trace.begin_s + begin * trace.step_s
        rates = counts
        if trace.step_s > 1:
            means = np.repeat(counts / trace.step_s, trace.step_s)
            drawn = random.poisson(np.nan_to_num(means)).astype(np.float64)
            rates = np.where(np.isnan(means), math.nan, drawn)
        known = np.flatnonzero(~np.isnan(rates))
        for span in np.split(known, np.flatnonzero(np.diff(known) > 1) + 1):
            if span.size:
                yield begin_s + int(span[-1]) + 1, rates[span]


def store_history(
    source: HistorySource,
    now_s: float,
    late_share_allowed: float,
    read: Callable[[], bytes | None],
    save: Callable[[bytes], object],
) -> int:
    """Learn from a history and save that, unless it can be read already. Blocks for seconds.

    `InvalidInputError`: the history is not usable. Any other `SojournError`: another try may do
    better.
    """
    code = source.code()
    if stored_load(read(), code) is None:
        name = f"{__name__}:{learn_from.__name__}"
        load = worker.run(
            name, source, now_s, late_share_allowed, time_limit_s=_TIMEOUT_S, name="history"
        )
        save(orjson.dumps({"code": code, "load": load}))
    return code


def learn_from(source: HistorySource, now_s: float, late_share_allowed: float) -> dict[str, Any]:
    """Return the state of what a source teaches; raise what `store_history` does."""
    known = source.trace(now_s).until(now_s)
    if not known.counts.size:
        raise InvalidInputError("history: has nothing from before now")
    return learn(known, late_share_allowed).state_dict()


def stored_load(content: bytes | None, code: int) -> Mapping[str, Any] | None:
    """Return what `store_history` stored; None if that has another code."""
    try:
        stored = orjson.loads(content or b"")
        load: Mapping[str, Any] = stored["load"]
        return load if stored["code"] == code else None
    except (ValueError, TypeError, KeyError):
        return None
