import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.hosting.report import CombinedReport

COUNTERS = tuple(
    f"{kind}_total" for kind in ("offered", "refused", "answered", "late", "refused_by_balancer")
)


class Counting:
    def __init__(self, rate_per_s, full_batch_ms=10.0):
        self.counters = dict.fromkeys(COUNTERS, 0.0)
        self.queue_length = 0.0
        self.rate_per_s, self.full_batch_ms = rate_per_s, full_batch_ms

    def serve(self, rows):
        self.counters = {name: total + rows for name, total in self.counters.items()}

    def autoscaling_stats(self):
        return {
            **self.counters,
            "queue_length": self.queue_length,
            "sla_rate_per_s": self.rate_per_s,
            "full_batch_size": 4.0,
            "full_batch_ms": self.full_batch_ms,
            "counted_s": 0.0,
        }


def test_a_row_counts_as_what_it_takes_of_a_replica():
    now_s = 5.0
    first, second = Counting(100), Counting(50)
    report = CombinedReport(lambda: now_s)
    report.of([first, second])
    first.serve(30)
    second.serve(10)
    second.queue_length = 3
    now_s = 7.5
    told = report.of([first, second])
    assert [told[name] for name in COUNTERS] == 5 * [30 + 2 * 10]
    assert told["queue_length"] == 6
    assert told["counted_s"] == 2.5


def test_until_the_curves_are_known_the_times_of_full_batches_tell():
    first, second = Counting(100, full_batch_ms=10), Counting(0, full_batch_ms=30)
    second.serve(10)
    assert CombinedReport().of([first, second])["offered_total"] == pytest.approx(30)


def test_what_a_replaced_version_has_done_counts_and_nothing_is_counted_twice():
    old, new = Counting(100), Counting(100)
    report = CombinedReport()
    old.serve(5)
    report.of([old])
    old.serve(7)
    new.serve(1)
    assert report.of([new])["offered_total"] == 6
    report.retired(old)
    assert report.of([new])["offered_total"] == 13


@given(st.lists(st.tuples(st.sampled_from("abcr"), st.floats(0, 100), st.floats(1, 500))))
def test_counters_never_fall_whatever_comes_goes_and_is_measured_anew(events):
    services = {name: Counting(100) for name in "abc"}
    report, before = CombinedReport(), dict.fromkeys(COUNTERS, 0.0)
    for name, rows, rate_per_s in events:
        if name == "r":
            report.retired(services["a"])
            services["a"] = Counting(rate_per_s)
        else:
            services[name].serve(rows)
            services[name].rate_per_s = rate_per_s
        told = report.of(services.values())
        assert all(told[counter] >= before[counter] for counter in COUNTERS)
        before = told
