"""The report of a load test: rates, response times, the share within the SLA, and failures.

Response times are of answers not known to be wrong, from when each request was due. A failed
request has no response time and counts as outside the SLA.
"""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deployments.config.user_config import SLAConfig
from loadtests.records import GOOD, REFUSED, Outcome, Records, outcome_name
from loadtests.schedule import Schedule

PERCENTILES = (50, 90, 95, 99, 99.9)
# The generator fell behind if its delay exceeds this share of the SLA.
BEHIND_SHARE_OF_SLA = 0.1
# Windows for percentiles contain this many late requests at the SLA's limit, unless too few windows
# would remain.
LATE_IN_WINDOW, WINDOWS = 5, 12

Mask = NDArray[np.bool_]


def report(records: Records, schedule: Schedule, sla: SLAConfig) -> dict[str, Any]:
    """Summarize a load test, ready for JSON.

    Rates are in requests per second: `target_rate_per_s` is that of the steps, `offered_rate_per_s`
    what was due, `achieved_rate_per_s` what was sent meanwhile, and `throughput_per_s` the answers
    not known to be wrong up to the last one. `ok` counts right answers, `answered` those without an
    expected answer, and `failed` the others, by HTTP status or, without an answer (`lost`), by
    outcome; `refused` those with one of the statuses `loadtests.records.REFUSED`;
    `waited_for_connection` requests that found every connection kept busy by the service.
    ``requests = ok + answered + wrong_answers + sum of failed``.
    """
    everything = np.ones(records.outcome.size, dtype=np.bool_)
    whole = _part(records, sla, everything, 0.0, schedule.duration_s)
    expected = sum(step.duration_s * step.arrival_rate_per_s for step in schedule.steps)
    lag_ms = records.lag_ms[np.isfinite(records.sent_s)]
    starts_s = schedule.step_starts_s
    return {
        "target_rate_per_s": expected / schedule.duration_s,
        **whole,
        "throughput_per_s": _throughput_per_s(records),
        "sla": {"response_time_ms": sla.response_time_ms, "percentile": sla.percentile},
        "by_step": [
            {
                "start_s": float(start_s),
                "duration_s": step.duration_s,
                "target_rate_per_s": step.arrival_rate_per_s,
                **_part(
                    records,
                    sla,
                    (records.scheduled_s >= start_s) & (records.scheduled_s < end_s),
                    float(start_s),
                    float(end_s),
                ),
            }
            for step, start_s, end_s in zip(
                schedule.steps, starts_s[:-1], starts_s[1:], strict=True
            )
        ],
        "generator_lag_ms": {
            "p50": _percentile(lag_ms, 50),
            "p99": _percentile(lag_ms, 99),
            "max": _percentile(lag_ms, 100),
        },
        "generator_fell_behind": bool(
            lag_ms.size and np.percentile(lag_ms, 99) > BEHIND_SHARE_OF_SLA * sla.response_time_ms
        ),
    }


def per_second(records: Records, schedule: Schedule, sla: SLAConfig) -> list[dict[str, Any]]:
    """Summarize each second of a load test, by when requests were due.

    `sent` counts the requests sent within the second, `ok` answers not known to be wrong, and
    `failed` the wrong and the lost, too. `lag_p99_ms` is how late the generator sent. None where no
    request counts.
    """
    seconds = int(np.ceil(schedule.duration_s))
    due = np.floor(records.scheduled_s).astype(np.int64)
    bounds = np.searchsorted(due, np.arange(seconds + 1))
    sent = np.bincount(
        np.floor(records.sent_s[np.isfinite(records.sent_s)]).astype(np.int64), minlength=seconds
    )
    good = records.good
    within = _within(records, sla)
    lag_ms, was_sent = records.lag_ms, np.isfinite(records.sent_s)
    rows = []
    for second in range(seconds):
        rows_due = slice(bounds[second], bounds[second + 1])
        response_ms = records.response_ms[rows_due][good[rows_due]]
        scheduled = int(bounds[second + 1] - bounds[second])
        rows.append(
            {
                "second": second,
                "scheduled": scheduled,
                "sent": int(sent[second]),
                "ok": response_ms.size,
                "failed": scheduled - response_ms.size,
                "p50_ms": _percentile(response_ms, 50),
                "p99_ms": _percentile(response_ms, 99),
                "sla_percentile_ms": _percentile(response_ms, sla.percentile),
                "within_sla_share": float(within[rows_due].mean()) if scheduled else None,
                "lag_p99_ms": _percentile(lag_ms[rows_due][was_sent[rows_due]], 99),
            }
        )
    return rows


def per_window(
    records: Records, schedule: Schedule, sla: SLAConfig
) -> tuple[float, list[dict[str, float | None]]]:
    """Compute the median and the SLA's percentile in windows; return their length and one row each.

    A window expects a few late requests if as many are late as the SLA allows; but there are
    `WINDOWS` windows at least. None stands for a window without a right answer.
    """
    late_per_s = (1 - sla.percentile / 100) * schedule.arrivals_s.size / schedule.duration_s
    window_s = min(LATE_IN_WINDOW / late_per_s, schedule.duration_s / WINDOWS)
    window_s = max(1.0, float(np.ceil(round(window_s, 6))))
    rows: list[dict[str, float | None]] = []
    for start_s in np.arange(0.0, schedule.duration_s, window_s).tolist():
        due = (records.scheduled_s >= start_s) & (records.scheduled_s < start_s + window_s)
        response_ms = records.response_ms[due & records.good]
        rows.append(
            {
                "start_s": start_s,
                "p50_ms": _percentile(response_ms, 50),
                "sla_percentile_ms": _percentile(response_ms, sla.percentile),
            }
        )
    return window_s, rows


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write the rows of `per_second` as CSV; None becomes an empty cell."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _part(
    records: Records, sla: SLAConfig, part: Mask, start_s: float, end_s: float
) -> dict[str, Any]:
    outcome = records.outcome[part]
    requests = int(outcome.size)
    within = float(_within(records, sla)[part].mean()) if requests else None
    sent = (records.sent_s >= start_s) & (records.sent_s < end_s)
    return {
        "requests": requests,
        "offered_rate_per_s": requests / (end_s - start_s),
        "achieved_rate_per_s": float(sent.sum() / (end_s - start_s)),
        "sent": int(np.isfinite(records.sent_s[part]).sum()),
        "waited_for_connection": int((records.connection_wait_s[part] > 0).sum()),
        "ok": int((outcome == Outcome.OK).sum()),
        "answered": int((outcome == Outcome.ANSWERED).sum()),
        "wrong_answers": int((outcome == Outcome.WRONG).sum()),
        "failed": _failures(outcome),
        "refused": int(np.isin(outcome, REFUSED).sum()),
        "lost": int(records.lost[part].sum()),
        "response_percentiles_ms": {
            f"{p:g}": _percentile(records.response_ms[part & records.good], p) for p in PERCENTILES
        },
        "share_within_sla": within,
        "sla_met": None if within is None else within >= sla.objective.least_level,
    }


def _failures(outcome: NDArray[np.int16]) -> Mapping[str, int]:
    codes, counts = np.unique(outcome, return_counts=True)
    return {
        outcome_name(code): int(count)
        for code, count in zip(codes.tolist(), counts, strict=True)
        if code not in (*GOOD, Outcome.WRONG)
    }


def _within(records: Records, sla: SLAConfig) -> Mask:
    # NaN compares false, so a request without an end is not in time.
    within: Mask = (records.response_ms <= sla.response_time_ms) & records.good
    return within


def _throughput_per_s(records: Records) -> float | None:
    finished_s = records.finished_s[records.good]
    return float(finished_s.size / finished_s.max()) if finished_s.size else None


def _percentile(values: NDArray[np.float64], percentile: float) -> float | None:
    # The nearest-rank percentile: an observed value, never an interpolated one.
    if not values.size:
        return None
    return float(np.percentile(values, percentile, method="inverted_cdf"))
