"""Measuring a profile: what a model costs on a device, per batch size.

Batch sizes of a grid are run in rounds, each round in a new random order, so that what drifts (the
clock rate, the neighbours) falls on all of them alike. The profile's latency is a fit of the
medians; the quantiles are kept beside it.
"""

import platform
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
from deployments.profiling.energy import EnergyMeter
from policy.errors import InvalidInputError, SojournError
from policy.profile import Profile

FloatArray = NDArray[np.float64]

LINE_TOLERANCE = 0.05
"""Largest relative distance of a measured median from the line for the line to be the fit."""

ENERGY_WINDOW_S = 0.5
"""Batches run back to back this long per energy reading; GPUs renew their counters every 0.1 s."""

QUANTILES = {"p10_ms": 0.10, "p50_ms": 0.50, "p90_ms": 0.90, "p99_ms": 0.99}


def measure_profile(
    model: Model,
    *,
    model_name: str,
    device: str,
    max_batch_size: int,
    batch_sizes: Sequence[int] | None = None,
    warm_up: int = 5,
    repeats: int = 100,
    budget_s: float | None = None,
    energy_meter: EnergyMeter | None = None,
    energy_note: str = "not measured",
    date: str | None = None,
    progress: Callable[[float], None] = lambda share_done: None,
) -> Profile:
    """Measure what a loaded model costs.

    Parameters
    ----------
    model : Model
        Loaded; its `example` is what it is measured on.
    model_name, device : str
        Names for the profile; `device` is ``cpu`` or ``cuda``.
    max_batch_size : int
        Largest batch size.
    batch_sizes : sequence of int, optional
        Sizes to measure; 1 and the largest are always among them. Between them the fit
        interpolates. If not given, about three for every doubling.
    warm_up, repeats : int
        Batches of each size that are run before, and that are measured.
    budget_s : float, optional
        End the rounds after this time, however many there were; each size is measured at least
        once. The energy comes on top.
    energy_meter : EnergyMeter, optional
        Measures the energy, where the model does not state its own.
    energy_note : str
        Why there is no meter; kept in the profile.
    date : str, optional
        Kept in the profile.
    progress : callable
        Told the share that is done, 0 to 1.

    Returns
    -------
    Profile
        In the table form. `measured` has ``batch_sizes`` (a row of quantiles per measured size),
        ``fit``, ``energy_source``, ``hardware``, ``versions`` and ``date``.

    Raises
    ------
    InvalidInputError
        A batch size or a count is not a whole number of at least 1, or a size is too large.
    StartError
        The model failed on a batch.
    """
    sizes = _check_sizes(max_batch_size, batch_sizes)
    for name, count in (("warm-up", warm_up), ("repeats", repeats)):
        if count < 1:
            raise InvalidInputError(f"{name}: must be at least 1, not {count}")
    stated = model.batch_energy_mj(1) is not None
    meter = None if stated else energy_meter
    latency_share = 1.0 if meter is None else 0.5
    times_ms = _measure_latency(
        model, sizes, warm_up, repeats, budget_s, lambda done: progress(done * latency_share)
    )
    rows: list[dict[str, Any]] = [
        {"batch_size": size, "repeats": len(times_ms[size])}
        | {name: round(float(np.quantile(times_ms[size], q)), 6) for name, q in QUANTILES.items()}
        for size in sizes
    ]
    latency_ms, latency_fit = fit(sizes, [row["p50_ms"] for row in rows], max_batch_size)
    fits = {"latency_ms": latency_fit}

    energy_mj = None
    if stated:
        energy_note = "stated by the model"
        energies_mj = [_stated_energy_mj(model, size) for size in range(1, max_batch_size + 1)]
        energy_mj = np.array(isotonic_regression(energies_mj).x)
    elif meter is not None:
        energy_note = meter.source
        for number, row in enumerate(rows):
            row["energy_mj"] = round(_measure_energy_mj(model, row["batch_size"], meter), 6)
            progress(latency_share + (1 - latency_share) * (number + 1) / len(rows))
        energy_mj, fits["energy_mj"] = fit(
            sizes, [row["energy_mj"] for row in rows], max_batch_size
        )
    return Profile(
        model=model_name,
        device=device,
        latency_ms=latency_ms,
        energy_mj=energy_mj,
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
    """Give the grid that is measured: 1, 2, 3, 4, 5, 6, 8, 10, 13, 16, … and the largest."""
    steps = np.arange(3 * max_batch_size.bit_length())
    sizes = np.rint(2 ** (steps / 3)).astype(int).tolist()
    return sorted({size for size in sizes if size < max_batch_size} | {max_batch_size})


def fit(
    batch_sizes: Sequence[int], values: Sequence[float], max_batch_size: int
) -> tuple[FloatArray, dict[str, Any]]:
    """Fit a non-decreasing table to values measured at some batch sizes.

    The line (no negative coefficient, least squares of relative errors) where it comes within
    `LINE_TOLERANCE` of every value; else the isotonic regression, linear between measured sizes.

    Parameters
    ----------
    batch_sizes : sequence of int, shape (k,)
        Increasing, the last `max_batch_size`.
    values : sequence of float, shape (k,)
        Not negative.
    max_batch_size : int
        Length of the table.

    Returns
    -------
    table : ndarray, shape (max_batch_size,)
        Entry ``b - 1`` is for batch size ``b``.
    description : dict
        ``form`` ("line" or "isotonic"), the line's ``per_request`` and ``fixed``, and
        ``max_relative_error`` over the measured sizes.
    """
    every_size = np.arange(1, max_batch_size + 1, dtype=np.float64)
    sizes, measured = np.array(batch_sizes, float), np.array(values, float)
    # A value of 0 (a counter too coarse) has no relative error: it weighs as the smallest other.
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


def hardware_name(device: str) -> str:
    """Name the processor, or the GPU, of this machine."""
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
    """Name what the measurement ran on: Python, the platform, and the libraries in use."""
    libraries = {
        name: str(sys.modules[name].__version__)
        for name in ("numpy", "torch")
        if name in sys.modules
    }
    return {"python": platform.python_version(), "platform": platform.platform()} | libraries


def _check_sizes(max_batch_size: int, batch_sizes: Sequence[int] | None) -> list[int]:
    if max_batch_size < 1:
        raise InvalidInputError(f"max batch size: must be at least 1, not {max_batch_size}")
    for size in batch_sizes or ():
        if not 1 <= size <= max_batch_size:
            raise InvalidInputError(f"batch sizes: must be 1 to {max_batch_size}, not {size}")
    if batch_sizes is None:
        return default_batch_sizes(max_batch_size)
    return sorted({1, *batch_sizes, max_batch_size})


def _measure_latency(
    model: Model,
    sizes: Sequence[int],
    warm_up: int,
    repeats: int,
    budget_s: float | None,
    progress: Callable[[float], None],
) -> dict[int, list[float]]:
    started_s = time.perf_counter()
    batches = {size: model.example(size) for size in sizes}
    shuffle = np.random.default_rng(0)
    times_ms: dict[int, list[float]] = {size: [] for size in sizes}

    def spent() -> float:
        return 0.0 if budget_s is None else (time.perf_counter() - started_s) / budget_s

    for turn in range(warm_up):
        if turn and spent() > 0.3:
            break
        for size in sizes:
            _run(model, batches[size], size)
    for turn in range(repeats):
        if turn and spent() >= 1.0:
            break
        for size in shuffle.permutation(sizes).tolist():
            times_ms[size].append(_run(model, batches[size], size))
        progress(max((turn + 1) / repeats, min(spent(), 1.0)))
    return times_ms


def _run(model: Model, batch: Mapping[str, NDArray[Any]], size: int) -> float:
    entered_s = time.perf_counter()
    try:
        model.forward(batch)
    except SojournError:
        raise
    except Exception as error:
        raise StartError(
            f"the model failed on a batch of {size}: {type(error).__name__}: {error}"
        ) from error
    return (time.perf_counter() - entered_s) * 1e3


def _measure_energy_mj(model: Model, size: int, meter: EnergyMeter) -> float:
    """Energy per batch, over batches that run back to back."""
    batch = model.example(size)
    before_mj, started_s, batches = meter.read_mj(), time.perf_counter(), 0
    while not batches or time.perf_counter() - started_s < ENERGY_WINDOW_S:
        _run(model, batch, size)
        batches += 1
    return (meter.read_mj() - before_mj) / batches


def _stated_energy_mj(model: Model, size: int) -> float:
    energy_mj = model.batch_energy_mj(size)
    if energy_mj is None:
        raise InvalidInputError(f"the model states the energy of a batch of 1, but not of {size}")
    return energy_mj
