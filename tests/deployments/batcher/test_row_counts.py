import numpy as np

from deployments.batcher.row_counts import ArrivalCounts


def test_counts_are_those_of_a_histogram_from_the_second_window_on():
    times_s = np.sort(np.random.default_rng(1).uniform(100.03, 104.0, 300))
    counts, taken = ArrivalCounts(0.25), []
    for number, time_s in enumerate(times_s.tolist()):
        counts.count(time_s, rows=2)
        if number % 70 == 0:
            taken += counts.take(time_s)
    taken += counts.take(104.1)
    expected = 2 * np.histogram(times_s, np.arange(100.25, 104.1, 0.25))[0]
    assert taken == expected.tolist()


def test_windows_without_arrivals_count_0():
    counts = ArrivalCounts(0.5)
    assert counts.take(3.0) == []
    for time_s in (3.4, 3.6):
        counts.count(time_s)
    assert counts.take(4.9) == [1, 0]
    counts.count(6.1)
    assert counts.take(6.6) == [0, 0, 0, 1]


def test_a_late_timestamp_counts_in_the_current_window():
    counts = ArrivalCounts(1.0)
    for time_s in (0.5, 1.2, 2.1, 1.9):
        counts.count(time_s)
    assert counts.take(3.0) == [1, 2]
