"""Measure a profile: the time and energy of a model's batches on a device, by batch size.

The measurement runs in rounds. Each round runs every batch size of a grid once, in a new random
order, so that drift (clock frequency, other load) affects all sizes alike. The profile's latency is
a fit to the median of each size; the profile also records the quantiles.
"""

import logging
import platform
import re
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression, nnls

from deployments.errors import StartError
from deployments.models.base import EnergyMeter, Model
from deployments.models.outputs import check_forward
from policy.errors import SojournError
from policy.latency_quantiles import LatencyQuantiles
from policy.profile import Profile
from policy.values import check_at_least

logger = logging.getLogger("sojourn.service")

FloatArray = NDArray[np.float64]

LINE_TOLERANCE = 0.05
"""The fit is a line if no measured value differs from it by more than this, relatively."""

ENERGY_WINDOWS, ENERGY_WINDOW_S = 3, 0.15
"""Windows of each batch size in which batches run back to back, and the least length of each."""

SHORT_ENERGY_WINDOW_S = 0.05
"""The same with a budget: then few sizes are measured."""

STUCK_COUNTER_S = 0.5
"""A counter that stands still for so long has counted nothing. GPUs update it every 0.1 s."""

WARM_UP, WARM_UP_BUDGET_SHARE = 5, 0.3
"""Batches of each size in the warm-up, which stops after this share of the budget."""

IDLE_WINDOW_S, SHORT_IDLE_WINDOW_S = 1.0, 0.3
"""How long the idle power is measured, and how long with a budget."""

MAX_RATIO = 5.0
"""The largest quantile of batch times, relative to the median, that a profile keeps."""

QUANTILES = {"p10_ms": 0.10, "p50_ms": 0.50, "p90_ms": 0.90, "p99_ms": 0.99}


def measure_profile(
    model: Model,
    *,
    model_name: str,
    device: str,
    max_batch_size: int,
    repeats: int = 100,
    budget_s: float | None = None,
    variation: bool = False,
    energy_meter: EnergyMeter | None = None,
    energy_note: str = "not measured",
    date: str | None = None,
    progress: Callable[[float], None] = lambda share_done: None,
) -> Profile:
    """Measure the profile of a loaded model, which runs on its `example`.

    The sizes of `default_batch_sizes` are measured, `repeats` times after `WARM_UP` batches each;
    the fit interpolates between them. The rounds stop after `budget_s`; each size is measured at
    least once. With `variation`, the profile says how batch times vary (`latency_quantiles`); its
    percentiles take ten times as long to compute.

    The meter measures the idle power, then the energy above it in windows of batches back to back,
    pooled by size; the profile has the standard error. With a budget, that takes as long again, for
    as many sizes as fit in. The profile says by `energy_note` why there is no energy. `progress`
    gets the share of work done.

    Raises
    ------
    InvalidInputError
        The largest size or a count is below 1.
    InfeasibleError
        The meter can no longer be read.
    StartError
        The model failed on a batch, or its outputs are not as declared.
    """
    check_at_least(1, "max batch size", max_batch_size)
    check_at_least(1, "repeats", repeats)
    sizes = default_batch_sizes(max_batch_size)
    texts = [spec.name for spec in model.inputs if spec.datatype == "BYTES"]
    if texts and type(model).example is Model.example:
        logger.warning(
            "input %r: the profile is measured with empty strings, because the model defines no "
            "example(batch_size); return typical ones there",
            texts[0],
        )
    check_forward(model, [1])  # its context uses power, too
    idle_power_w, latency_share = None, 1.0
    if energy_meter is not None:
        idle_power_w, latency_share = _measure_idle_power_w(energy_meter, budget_s), 0.5
    times_ms, undisturbed_ms = _measure_latency(
        model, sizes, repeats, budget_s, lambda done: progress(done * latency_share)
    )
    rows: list[dict[str, Any]] = [
        {"batch_size": size, "repeats": len(times_ms[size])}
        | {name: round(float(np.quantile(times_ms[size], q)), 6) for name, q in QUANTILES.items()}
        for size in sizes
    ]
    latency_ms, latency_fit = fit_table(sizes, [row["p50_ms"] for row in rows], max_batch_size)
    fits = {"latency_ms": latency_fit}

    energy_mj = None
    if energy_meter is not None and idle_power_w is not None:
        energy_note = energy_meter.source
        windows_mj = _measure_above_idle_mj(
            model,
            sizes,
            energy_meter,
            idle_power_w,
            budget_s,
            lambda done: progress(latency_share + (1 - latency_share) * done),
        )
        pooled_mj = {size: max(0.0, float(np.mean(one))) for size, one in windows_mj.items()}
        above_idle_mj, fits["energy_mj"] = fit_table(
            list(pooled_mj), list(pooled_mj.values()), max_batch_size
        )
        energy_mj = above_idle_mj + idle_power_w * latency_ms
        for row in rows:
            size = row["batch_size"]
            if size in windows_mj:
                row["energy_mj"] = round(pooled_mj[size] + idle_power_w * row["p50_ms"], 6)
                row["energy_standard_error_mj"] = _standard_error(windows_mj[size])
    return Profile(
        model=model_name,
        device=device,
        latency_ms=latency_ms,
        energy_mj=energy_mj,
        idle_power_w=idle_power_w,
        latency_quantiles=fit_quantiles(undisturbed_ms, max_batch_size) if variation else None,
        measured={
            "batch_sizes": rows,
            "fit": fits,
            "energy_source": energy_note,
            "hardware": hardware_name(device),
            "versions": versions(),
            "date": date,
        },
    )


def default_batch_sizes(max_batch_size: int) -> list[int]:
    """Return the default grid: about three sizes per doubling, from 1 to `max_batch_size`."""
    steps = np.arange(3 * max_batch_size.bit_length())
    sizes = np.rint(2 ** (steps / 3)).astype(int).tolist()
    return sorted({size for size in sizes if size < max_batch_size} | {max_batch_size})


def fit_table(
    batch_sizes: Sequence[int], values: Sequence[float], max_batch_size: int
) -> tuple[FloatArray, dict[str, Any]]:
    """Fit a non-decreasing table to values measured at increasing sizes up to `max_batch_size`.

    The fit is a line if that comes within `LINE_TOLERANCE` of every value; the line has no negative
    coefficient and minimizes the squared relative errors. Otherwise the fit is the isotonic
    regression, interpolated linearly between the measured sizes.

    Entry ``b - 1`` of the table is for batch size ``b``. The description has its ``form`` ("line"
    or "isotonic"), ``max_relative_error`` at the measured sizes and, of a line, ``per_request`` and
    ``fixed``.
    """
    every_size = np.arange(1, max_batch_size + 1, dtype=np.float64)
    sizes, measured = np.array(batch_sizes, float), np.array(values, float)
    # A coarse counter may read 0, which has no relative error: weigh it like the smallest nonzero
    # value.
    scale = np.maximum(measured, np.min(measured[measured > 0], initial=np.max(measured) or 1.0))
    (slope, fixed), _ = nnls(
        np.stack([sizes, np.ones_like(sizes)], 1) / scale[:, None], measured / scale
    )
    error = float(np.max(np.abs(fixed + slope * sizes - measured) / scale))
    if error <= LINE_TOLERANCE:
        line = {"form": "line", "per_request": float(slope), "fixed": float(fixed)}
        return np.round(fixed + slope * every_size, 6), line | {"max_relative_error": error}
    regression = np.array(isotonic_regression(measured, weights=scale**-2.0).x)
    error = float(np.max(np.abs(regression - measured) / scale))
    table = np.round(np.interp(every_size, sizes, regression), 6)
    return table, {"form": "isotonic", "max_relative_error": error}


def fit_quantiles(times_ms: Mapping[int, Sequence[float]], max_batch_size: int) -> LatencyQuantiles:
    """Return the quantiles of batch times, relative to their median, for every batch size.

    `times_ms` has increasing batch sizes. Each size is pooled with its neighbors, because a 99th
    percentile needs many batches. Ratios in between are interpolated. Ratios above `MAX_RATIO`
    count as `MAX_RATIO`: a stall of the machine is no property of the model, and a tail fitted to
    it would have no end.
    """
    sizes = list(times_ms)
    relative = [np.array(times_ms[size]) / np.median(times_ms[size]) for size in sizes]
    pooled = [np.concatenate(relative[max(0, i - 1) : i + 2]) for i in range(len(sizes))]
    shares = np.array(list(QUANTILES.values()))
    ratios = np.array([np.quantile(sample, shares) for sample in pooled]).clip(max=MAX_RATIO)
    every_size = np.arange(1, max_batch_size + 1)
    table = [np.interp(every_size, sizes, column) for column in ratios.T]
    return LatencyQuantiles(100 * shares, np.round(table, 4))


def hardware_name(device: str) -> str:
    if device == "cuda":
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available():
            return str(torch.cuda.get_device_name())
        return "unknown GPU"
    with suppress(OSError):
        found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        if found is not None:
            return found[1].strip()
    return platform.processor() or platform.machine()


def versions() -> Mapping[str, str]:
    libraries = {
        name: str(sys.modules[name].__version__)
        for name in ("numpy", "torch")
        if name in sys.modules
    }
    return {"python": platform.python_version(), "platform": platform.platform()} | libraries


def _measure_latency(
    model: Model,
    sizes: Sequence[int],
    repeats: int,
    budget_s: float | None,
    progress: Callable[[float], None],
) -> tuple[dict[int, list[float]], dict[int, list[float]]]:
    """Return the batch times by size: all, and those without preemption of this thread."""
    started_s = time.perf_counter()
    batches = {size: model.example(size) for size in sizes}
    shuffle = np.random.default_rng(0)
    times_ms: dict[int, list[float]] = {size: [] for size in sizes}
    undisturbed_ms: dict[int, list[float]] = {size: [] for size in sizes}

    def budget_share() -> float:
        return 0.0 if budget_s is None else (time.perf_counter() - started_s) / budget_s

    for round_number in range(WARM_UP):
        if round_number and budget_share() > WARM_UP_BUDGET_SHARE:
            break
        for size in sizes:
            _time_batch_ms(model, batches[size], size)
    for round_number in range(repeats):
        if round_number and budget_share() >= 1.0:
            break
        for size in shuffle.permutation(sizes).tolist():
            before = _preemptions()
            times_ms[size].append(_time_batch_ms(model, batches[size], size))
            if _preemptions() == before:
                undisturbed_ms[size].append(times_ms[size][-1])
        progress(max((round_number + 1) / repeats, min(budget_share(), 1.0)))
    return times_ms, {size: undisturbed_ms[size] or times_ms[size] for size in sizes}


def _preemptions() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


def _time_batch_ms(model: Model, batch: Mapping[str, NDArray[Any]], size: int) -> float:
    """Run a copy of a batch, into which the model may write, and return its time in ms."""
    batch = {name: array.copy() for name, array in batch.items()}
    started_s = time.perf_counter()
    try:
        model.forward(batch)
    except SojournError:
        raise
    except Exception as error:
        raise StartError(
            f"the model failed on a batch of {size}: {type(error).__name__}: {error}"
        ) from error
    return (time.perf_counter() - started_s) * 1e3


def _measure_above_idle_mj(
    model: Model,
    sizes: Sequence[int],
    meter: EnergyMeter,
    idle_power_w: float,
    budget_s: float | None,
    progress: Callable[[float], None],
) -> dict[int, list[float]]:
    """Return the mean energy of a batch in each window, above that of the idle device, by size.

    So it does not count how long the device waited for its next batch.

    Each round has a window of every size. With a budget, the sizes are a few from 1 to the largest,
    and rounds stop when it has been used up; the first is complete.
    """
    window_s = ENERGY_WINDOW_S if budget_s is None else SHORT_ENERGY_WINDOW_S
    if budget_s is not None:
        most = max(2, int(budget_s / (ENERGY_WINDOWS * window_s)))
        chosen = np.unique(np.rint(np.linspace(0, len(sizes) - 1, most)).astype(int))
        sizes = [sizes[place] for place in chosen]
    batches = {size: model.example(size) for size in sizes}
    windows_mj: dict[int, list[float]] = {size: [] for size in sizes}
    shuffle = np.random.default_rng(0)

    def run(size: int, least_s: float) -> _Counted:
        return _until_change(meter, lambda: _time_batch_ms(model, batches[size], size), least_s)

    started_s = time.perf_counter()
    before = run(sizes[0], 0.0)
    for round_number in range(ENERGY_WINDOWS):
        if round_number and budget_s and time.perf_counter() - started_s > budget_s:
            break
        for number, size in enumerate(shuffle.permutation(sizes).tolist()):
            after = run(size, window_s)
            idle_mj = 1e3 * idle_power_w * (after.read_s - before.read_s)
            windows_mj[size].append((after.read_mj - before.read_mj - idle_mj) / after.times)
            before = after
            progress((round_number + (number + 1) / len(sizes)) / ENERGY_WINDOWS)
    return windows_mj


def _measure_idle_power_w(meter: EnergyMeter, budget_s: float | None) -> float:
    window_s = IDLE_WINDOW_S if budget_s is None else SHORT_IDLE_WINDOW_S
    before, after = (
        _until_change(meter, lambda: time.sleep(1e-3), least_s) for least_s in (0.0, window_s)
    )
    return 1e-3 * (after.read_mj - before.read_mj) / (after.read_s - before.read_s)


class _Counted(NamedTuple):
    read_s: float
    read_mj: float
    times: int


def _until_change(meter: EnergyMeter, work: Callable[[], object], least_s: float) -> _Counted:
    """Repeat `work` for `least_s`, and until the counter changes; return the last reading.

    A window from change to change has all of its own energy, and no other, of a counter that
    changes seldom.
    """
    started_s, last_mj, times = time.perf_counter(), meter.read_mj(), 0
    while True:
        work()
        times += 1
        now_s, now_mj = time.perf_counter(), meter.read_mj()
        if now_s - started_s >= (least_s if now_mj != last_mj else least_s + STUCK_COUNTER_S):
            return _Counted(now_s, now_mj, times)
        last_mj = now_mj


def _standard_error(values: Sequence[float]) -> float | None:
    """Return the standard error of the mean; None for a single value."""
    if len(values) < 2:
        return None
    return round(float(np.std(values, ddof=1) / np.sqrt(len(values))), 6)
