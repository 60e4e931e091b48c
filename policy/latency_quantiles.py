"""How the time of a batch varies: quantiles, as ratios to the profile's latency.

In a profile file they are percentiles, each with one ratio for all batch sizes or a list with one
ratio per size::

    "latency_quantiles": {"10": 0.97, "50": 1.0, "90": 1.05, "99": 1.3}

Ratios outlive a refit: a device that becomes twice as slow is taken to vary as before.
"""

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policy.errors import InvalidInputError

FloatArray = NDArray[np.float64]

_NAME = "profile: latency_quantiles"

# The distribution is represented by this many points, equally spaced in the standard normal
# variable of the same rank, up to this many standard deviations (a probability of 3e-6).
_POINTS, _MAX_DEVIATIONS = 2001, 4.5
_DEVIATIONS, _STEP = np.linspace(-_MAX_DEVIATIONS, _MAX_DEVIATIONS, _POINTS, retstep=True)


@dataclass(frozen=True, eq=False)
class LatencyQuantiles:
    """Quantiles of the time of a batch, as ratios to the profile's latency.

    Attributes
    ----------
    percentiles : ndarray of float, shape (n,)
        Increasing, between 0 and 100; at least two.
    ratios : ndarray of float, shape (n, max_batch_size)
        Entry ``[i, b - 1]``: that percentile of the time of a batch of ``b``, over the profile's
        latency. Positive, not decreasing with the percentile.
    """

    percentiles: FloatArray
    ratios: FloatArray

    def __post_init__(self) -> None:
        for name in ("percentiles", "ratios"):
            table = np.array(getattr(self, name), dtype=np.float64)
            table.setflags(write=False)
            object.__setattr__(self, name, table)
        percentiles, ratios = self.percentiles, self.ratios
        if percentiles.ndim != 1 or percentiles.size < 2:
            raise InvalidInputError(f"{_NAME} must have at least two percentiles")
        if not np.all((percentiles > 0) & (percentiles < 100)):
            raise InvalidInputError(f"{_NAME}: percentiles must be between 0 and 100")
        if not np.all(np.diff(percentiles) > 0):
            raise InvalidInputError(f"{_NAME}: percentiles must increase")
        if ratios.ndim != 2 or ratios.shape[0] != percentiles.size or ratios.shape[1] < 1:
            raise InvalidInputError(f"{_NAME} must have a ratio for each percentile and batch size")
        if not (np.all(np.isfinite(ratios)) and np.all(ratios > 0)):
            raise InvalidInputError(f"{_NAME} must hold finite ratios above 0")
        if np.any(np.diff(ratios, axis=0) < 0):
            raise InvalidInputError(f"{_NAME} must not decrease with the percentile")

    def up_to(self, batch_size: int) -> "LatencyQuantiles":
        return LatencyQuantiles(self.percentiles, self.ratios[:, :batch_size])

    @classmethod
    def from_dict(cls, content: object, max_batch_size: int) -> "LatencyQuantiles":
        if not isinstance(content, Mapping):
            raise InvalidInputError(f"{_NAME} must be an object of ratios by percentile")
        rows: dict[float, FloatArray] = {}
        for key, value in content.items():
            try:
                percentile = float(key)
                ratios = np.array(value, dtype=np.float64)
            except (TypeError, ValueError, OverflowError) as error:
                raise InvalidInputError(
                    f"{_NAME} must hold numbers by percentile, not {key!r}: {reprlib.repr(value)}"
                ) from error
            if ratios.shape not in ((), (max_batch_size,)):
                raise InvalidInputError(
                    f"{_NAME}: {key} must be one ratio or {max_batch_size}, one per batch size"
                )
            rows[percentile] = np.broadcast_to(ratios, (max_batch_size,))
        percentiles = sorted(rows)
        ratios = np.array([rows[percentile] for percentile in percentiles])
        return cls(np.array(percentiles), ratios.reshape(len(percentiles), -1))

    def to_dict(self) -> dict[str, Any]:
        return {
            _key(percentile): row[0] if len(set(row)) == 1 else row
            for percentile, row in zip(self.percentiles.tolist(), self.ratios.tolist(), strict=True)
        }

    @cached_property
    def points(self) -> tuple[FloatArray, FloatArray]:
        """The distribution as many points of equal spacing in rank.

        Between the quantiles, the logarithm of the ratio is interpolated by a monotone cubic over
        the standard normal variable of the same rank, in which a log-normal distribution is a
        straight line; beyond them it goes on straight. Returns the ratios, shape (max_batch_size,
        points), and their weights, which sum to 1.
        """
        # Importing these takes a while, and most profiles have no quantiles.
        from scipy.interpolate import PchipInterpolator
        from scipy.special import ndtr, ndtri

        ranks = ndtri(self.percentiles / 100)
        curve = PchipInterpolator(ranks, np.log(self.ratios))
        inside = np.clip(_DEVIATIONS, ranks[0], ranks[-1])
        logs = curve(inside) + (_DEVIATIONS - inside)[:, None] * curve(inside, 1)
        weights = np.diff(ndtr(np.append(_DEVIATIONS - _STEP / 2, _MAX_DEVIATIONS + _STEP / 2)))
        return np.ascontiguousarray(np.exp(logs).T), weights / weights.sum()

    @staticmethod
    def ranks(deviates: FloatArray) -> FloatArray:
        """Return the places of standard normal variables among `points`, same shape."""
        return np.clip((deviates + _MAX_DEVIATIONS) / _STEP, 0.0, _POINTS - 1.0)

    def means_ms(self, latency_ms: FloatArray) -> FloatArray:
        """Return the mean time of a batch by batch size, for the profile's latency."""
        ratios, weights = self.points
        return np.asarray(latency_ms * (ratios[: latency_ms.size] @ weights))


def _key(percentile: float) -> str:
    """Return a percentile as text that says exactly it, without a needless point."""
    short = f"{percentile:g}"
    return short if float(short) == percentile else repr(percentile)
