"""What the latest reports say together, counted by hand."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.live_reports import LiveReports
from autoscaler.reports import BOTTLENECKS, ReplicaReport
from tests.support.reporting_fleet import START_S, Fleet

FULL_BATCH = 32
TEMPLATE = Fleet().report_of("r0")

#: Of each replica: seconds since its report, requests in its queue, code of its bottleneck.
replicas = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 200), st.integers(0, 3)), min_size=1, max_size=8
)


def reports(said: list[tuple[int, int, int]]) -> list[ReplicaReport]:
    return [
        replace(
            TEMPLATE,
            replica_id=f"r{number}",
            time_s=START_S - age_s,
            queue_length=float(queue),
            full_batch_size=float(FULL_BATCH),
            bottleneck_code=float(code),
        )
        for number, (age_s, queue, code) in enumerate(said)
    ]


@given(replicas, st.integers(0, 20))
def test_only_timely_reports_count(said: list[tuple[int, int, int]], lag_s: int) -> None:
    live = LiveReports.of(reports(said), START_S - lag_s)
    timely = [report for report in said if report[0] <= lag_s]
    assert live.replicas == len(timely)
    assert live.backlog == sum(max(0, queue - 2 * FULL_BATCH) for _, queue, _ in timely)
    assert bool(live.median_replicas) == bool(timely)
    codes = [code for *_, code in timely if code]
    if codes:
        assert live.bottleneck in BOTTLENECKS
        of_it = codes.count(1 + BOTTLENECKS.index(live.bottleneck))
        assert of_it == max(map(codes.count, codes))
    else:
        assert live.bottleneck is None


@given(replicas, st.integers(0, 20))
def test_every_replica_that_has_reported_since_counts(
    said: list[tuple[int, int, int]], lag_s: int
) -> None:
    # The cutoff for what is timely does not matter here.
    live = LiveReports.of(reports(said), START_S)
    assert live.reported_since(START_S - lag_s) == sum(age_s <= lag_s for age_s, *_ in said)


def test_queues_within_what_is_normal_do_not_make_up_for_longer_ones() -> None:
    live = LiveReports.of(reports([(0, 0, 0), (0, 100, 0)]), START_S)
    assert live.backlog == pytest.approx(100 - 2 * FULL_BATCH)
