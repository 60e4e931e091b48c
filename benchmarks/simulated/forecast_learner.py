"""A forecaster learned by gradient boosting, to compare with: what the past says about the demand.

It predicts quantiles of the ratio of the highest rate required until the horizon to the mean of the
last minute. Its features are means, highest and lowest rates of spans of 10 s to 2 h, how long ago
the highest came, the position in a quarter of an hour up to a day, and how far the load rose at the
same time of earlier hours and days. Each is known at the time that it is for.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingRegressor

from autoscaler.forecasting.load_history import STEP_S, RequiredRate
from autoscaler.forecasting.point_forecasts import trailing_max, trailing_mean

FloatArray = NDArray[np.float64]
#: How often something is ordered.
EVERY_S = STEP_S
QUANTILES = (0.8, 0.9, 0.95, 0.97, 0.98, 0.985, 0.99, 0.995)
_DAY_STEPS = 86_400 // EVERY_S
_MINUTE_STEPS = 60 // EVERY_S
_SPANS_STEPS = tuple(seconds // EVERY_S for seconds in (10, 30, 120, 300, 900, 1800, 3600, 7200))
_PERIODS_S = (900, 1800, 3600, 7200, 86_400)
#: The same time of these earlier hours, and so of the days before.
_LAGS_S = (1800, 3600, 7200, 10_800, 14_400, 21_600, 86_400, 2 * 86_400)
#: For each period, so many past rounds tell in what share of them the load rose by `_RISE`.
_ROUNDS, _RISE = {3600: 24, 7200: 24, 86_400: 7}, 1.8
#: Jumps are not exactly on time.
_JITTER_STEPS = 3
#: Ratios beyond it, as after an outage of the trace, teach nothing.
_MAX_RATIO = 6.0
#: Lower bound of a minute's mean, as a share of the mean load, as a divisor.
_LEAST_SHARE = 0.05


@dataclass(frozen=True, eq=False)
class DayTable:
    """A day's steps of `EVERY_S` seconds, each as seen at its end.

    Attributes
    ----------
    features : ndarray of float, shape (steps, features)
    scale : ndarray of float, shape (steps,)
        Mean of the last minute, in requests per second.
    required : ndarray of float, shape (steps,)
        The rate required in the last minute.
    peak : ndarray of float, shape (steps,)
        The highest rate required until the horizon and the next decision: what is to be predicted.
    """

    features: FloatArray
    scale: FloatArray
    required: FloatArray
    peak: FloatArray


def highest_ahead(values: FloatArray, count: int) -> FloatArray:
    """Return the maximum of each value and the `count` after it; of fewer at the end."""
    padded = np.concatenate((values, np.full(count, values[-1])))
    highest: FloatArray = sliding_window_view(padded, count + 1).max(axis=1)
    return highest


def tables(days: Sequence[FloatArray], horizon_s: int, unserved_share: float) -> list[DayTable]:
    """Return the tables of days that follow each other.

    Parameters
    ----------
    days : sequence of ndarray of float, shape (seconds,)
        Requests of each second; whole steps.
    horizon_s : int
    unserved_share : float
        Share of a minute's requests that may go unserved.
    """
    counts = np.concatenate(days)
    window = RequiredRate(unserved_share)
    required_by_second = np.array([window.push(rate) for rate in counts.tolist()])
    rates = counts.reshape(-1, EVERY_S).mean(axis=1)
    highest = required_by_second.reshape(-1, EVERY_S).max(axis=1)
    required = required_by_second[EVERY_S - 1 :: EVERY_S]
    ahead = highest_ahead(highest, horizon_s // EVERY_S + 1)
    peak = np.append(ahead[1:], highest[-1])
    scale = np.maximum(trailing_mean(rates, _MINUTE_STEPS), _LEAST_SHARE * rates.mean())
    features = _features(rates, highest, required, peak, scale, horizon_s)
    ends = np.cumsum([day.size // EVERY_S for day in days])[:-1]
    return [
        DayTable(*parts)
        for parts in zip(
            *(np.split(series, ends) for series in (features, scale, required, peak)), strict=True
        )
    ]


def learned_ratios(teachers: Sequence[DayTable], pupil: DayTable) -> FloatArray:
    """Learn from some days the quantiles of the ratio of peak to scale, and predict a day's.

    Returns
    -------
    ndarray of float, shape (steps, len(QUANTILES))
        They do not fall from one quantile to the next.
    """
    features = np.concatenate([table.features for table in teachers])
    ratios = np.concatenate([table.peak / table.scale for table in teachers])
    predicted = [
        HistGradientBoostingRegressor(
            loss="quantile",
            quantile=quantile,
            max_iter=100,
            learning_rate=0.06,
            max_leaf_nodes=15,
            min_samples_leaf=40,
            l2_regularization=1.0,
            early_stopping=False,
            random_state=0,
        )
        .fit(features, np.minimum(ratios, _MAX_RATIO))
        .predict(pupil.features)
        for quantile in QUANTILES
    ]
    rising: FloatArray = np.maximum.accumulate(np.stack(predicted, axis=1), axis=1)
    return rising


def _features(
    rates: FloatArray,
    highest: FloatArray,
    required: FloatArray,
    peak: FloatArray,
    scale: FloatArray,
    horizon_s: int,
) -> FloatArray:
    columns = [scale, required / scale, trailing_mean(rates, _DAY_STEPS) / scale]
    for span in _SPANS_STEPS:
        columns.append(trailing_mean(rates, span) / scale)
        if span > 1:
            columns.append(trailing_max(highest, span) / scale)
            columns.append(-trailing_max(-rates, span) / scale)
            columns.append(_steps_since_highest(highest, span))
    ends_s = EVERY_S * np.arange(1, rates.size + 1)
    columns += [(ends_s % period).astype(np.float64) for period in _PERIODS_S]
    # How far the load rose from each step, give or take the jitter. It is known once the horizon
    # and the jitter are over, so a lag must be longer than that.
    known_after = horizon_s // EVERY_S + 1 + _JITTER_STEPS
    rose = highest_ahead(trailing_max(peak / scale, _JITTER_STEPS + 1), _JITTER_STEPS)
    columns += [_earlier(rose, lag // EVERY_S, known_after) for lag in _LAGS_S]
    for period, rounds in _ROUNDS.items():
        lags = [number * period // EVERY_S for number in range(1, rounds + 1)]
        past = np.stack([_earlier(rose, lag, known_after) for lag in lags])
        seen = np.maximum(1, (past > 0).sum(axis=0))
        columns += [(past > _RISE).sum(axis=0) / seen, np.maximum(past, 0).sum(axis=0) / seen]
    return np.stack(columns, axis=1)


def _steps_since_highest(highest: FloatArray, span: int) -> FloatArray:
    padded = np.concatenate((np.full(span - 1, highest[0]), highest))
    newest_first = sliding_window_view(padded, span)[:, ::-1]
    steps: FloatArray = newest_first.argmax(axis=1).astype(np.float64)
    return steps


def _earlier(values: FloatArray, lag: int, known_after: int) -> FloatArray:
    """Return the values of `lag` steps ago; -1 where there are none, or they are not known yet."""
    earlier = np.full(values.size, -1.0)
    if known_after < lag < values.size:
        earlier[lag:] = values[:-lag]
    return earlier
