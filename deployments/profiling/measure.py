"""Measure a profile: the time and energy of a model's batches on a device, by batch size.

The measurement runs in rounds. Each round runs every batch size of a grid once, in a new random
order, so that drift (clock frequency, other load) affects all sizes alike. The profile's latency is
a fit to the median of each size; the profile also records the quantiles.
"""

import logging
import platform
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression, nnls

from deployments.errors import StartError
from deployments.models.base import Model
from deployments.models.example_request import example_batch
from deployments.profiling.energy import EnergyMeter
from policy.errors import InvalidInputError, SojournError
from policy.latency_quantiles import LatencyQuantiles
from policy.profile import Profile

logger = logging.getLogger("sojourn.service")

FloatArray = NDArray[np.float64]

LINE_TOLERANCE = 0.05
"""The fit is a line if no measured value differs from it by more than this, relatively."""

ENERGY_WINDOW_S = 0.5
"""How long batches run back to back per energy reading. GPUs update their counters every 0.1 s."""

WARM_UP_BUDGET_SHARE = 0.3
"""The warm-up stops after this share of the budget."""

IDLE_WINDOW_S = 1.0
"""How long the idle power of a GPU is measured."""

MAX_RATIO = 5.0
"""The largest quantile of batch times, relative to the median, that a profile keeps."""

QUANTILES = {"p10_ms": 0.10, "p50_ms": 0.50, "p90_ms": 0.90, "p99_ms": 0.99}


def measure_profile(
    model: Model,
    *,
    model_name: str,
    device: str,
    max_batch_size: int,
    warm_up: int = 5,
    repeats: int = 100,
    budget_s: float | None = None,
    variation: bool = False,
    energy_meter: EnergyMeter | None = None,
    energy_note: str = "not measured",
    date: str | None = None,
    progress: Callable[[float], None] = lambda share_done: None,
) -> Profile:
    """Measure the profile of a loaded model, which runs on its `example`.

    The sizes of `default_batch_sizes` are measured, `repeats` times after `warm_up` batches each;
    the fit interpolates between them. The rounds stop after `budget_s`, without the time for energy
    readings; each size is measured at least once. With `variation`, the profile says how batch
    times vary (`latency_quantiles`); its percentiles take ten times as long to compute.

    The meter measures the energy, unless the model knows its own; of a GPU also the idle power. The
    profile says by `energy_note` why there is none. `progress` gets the share of work done.

    Raises
    ------
    InvalidInputError
        The largest size or a count is below 1, or the model states the energy of some batch sizes
        only.
    StartError
        The model failed on a batch.
    """
    for name, count in (
        ("max batch size", max_batch_size),
        ("warm-up", warm_up),
        ("repeats", repeats),
    ):
        if count < 1:
            raise InvalidInputError(f"{name}: must be at least 1, not {count}")
    sizes = default_batch_sizes(max_batch_size)
    texts = [spec.name for spec in model.inputs if spec.datatype == "BYTES"]
    if texts and type(model).example is Model.example:
        logger.warning(
            "input %r: the profile is measured with empty strings, because the model defines no "
            "example(batch_size); return typical ones there",
            texts[0],
        )
    model_knows_energy = model.batch_energy_mj(1) is not None
    meter = None if model_knows_energy else energy_meter
    latency_share = 1.0 if meter is None else 0.5
    idle_power_w = None
    if meter is not None and device == "cuda":
        model.forward(example_batch(model, 1))  # its context uses power, too
        idle_power_w = _measure_idle_power_w(meter)
    times_ms, undisturbed_ms = _measure_latency(
        model, sizes, warm_up, repeats, budget_s, lambda done: progress(done * latency_share)
    )
    rows: list[dict[str, Any]] = [
        {"batch_size": size, "repeats": len(times_ms[size])}
        | {name: round(float(np.quantile(times_ms[size], q)), 6) for name, q in QUANTILES.items()}
        for size in sizes
    ]
    latency_ms, latency_fit = fit_table(sizes, [row["p50_ms"] for row in rows], max_batch_size)
    fits = {"latency_ms": latency_fit}

    energy_mj = None
    if model_knows_energy:
        energy_note = "stated by the model"
        energies_mj = [_stated_energy_mj(model, size) for size in range(1, max_batch_size + 1)]
        energy_mj = np.array(isotonic_regression(energies_mj).x)
    elif meter is not None:
        energy_note = meter.source
        for number, row in enumerate(rows):
            row["energy_mj"] = round(_measure_energy_mj(model, row["batch_size"], meter), 6)
            progress(latency_share + (1 - latency_share) * (number + 1) / len(rows))
        energy_mj, fits["energy_mj"] = fit_table(
            sizes, [row["energy_mj"] for row in rows], max_batch_size
        )
    if idle_power_w is not None and energy_mj is not None:
        idle_power_w = min(idle_power_w, float(np.min(energy_mj / latency_ms)))
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
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


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
    warm_up: int,
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

    for round_number in range(warm_up):
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
    for size, undisturbed in undisturbed_ms.items():
        if not undisturbed:
            undisturbed_ms[size] = times_ms[size]
    return times_ms, undisturbed_ms


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


def _measure_energy_mj(model: Model, size: int, meter: EnergyMeter) -> float:
    """Return the mean energy of a batch, over batches that run back to back."""
    batch = model.example(size)
    before_mj, started_s, batches = meter.read_mj(), time.perf_counter(), 0
    while not batches or time.perf_counter() - started_s < ENERGY_WINDOW_S:
        _time_batch_ms(model, batch, size)
        batches += 1
    return (meter.read_mj() - before_mj) / batches


def _measure_idle_power_w(meter: EnergyMeter) -> float:
    before_mj, started_s = meter.read_mj(), time.perf_counter()
    time.sleep(IDLE_WINDOW_S)
    return 1e-3 * (meter.read_mj() - before_mj) / (time.perf_counter() - started_s)


def _stated_energy_mj(model: Model, size: int) -> float:
    energy_mj = model.batch_energy_mj(size)
    if energy_mj is None:
        raise InvalidInputError(f"the model states the energy of a batch of 1 but not of {size}")
    return energy_mj
