"""What the comparison of load generators reads and judges."""

import pytest

from benchmarks.live.load_generators import Measured, parse_perf_analyzer, parse_wrk
from benchmarks.peers.environments import UnavailableError

#: As wrk 4.1.0 prints it.
WRK = """Running 4s test @ http://127.0.0.1:8200/v2/models/emulated/infer
  1 threads and 5 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     7.43ms    4.34ms  46.31ms   92.03%
    Req/Sec   679.60    124.02     0.87k    67.50%
  Latency Distribution
     50%  995.00us
     75%    7.03ms
     90%   11.90ms
     99%    1.26s
  2706 requests in 4.00s, 634.22KB read
Requests/sec:    675.94
Transfer/sec:    158.42KB
"""


def test_wrk_prints_times_in_several_units() -> None:
    assert parse_wrk(WRK, 0.02706) == Measured(675.94, 0.995, 11.9, 1260, pytest.approx(10))


#: As perf_analyzer 2.41.1 writes it, without some of its columns.
PERF_ANALYZER = """Request Rate,Inferences/Second,p50 latency,p90 latency,p95 latency,p99 latency
200,196.4,91400,113700,120000,137200
"""


def test_perf_analyzer_writes_microseconds() -> None:
    measured = parse_perf_analyzer(PERF_ANALYZER, 0.1964, 10.0)
    assert measured == Measured(196.4, 91.4, 113.7, 137.2, pytest.approx(100))


@pytest.mark.parametrize("table", ["", "Inferences/Second\n1", PERF_ANALYZER * 2])
def test_another_table_of_perf_analyzer_is_not_understood(table: str) -> None:
    with pytest.raises(UnavailableError, match="not understood"):
        parse_perf_analyzer(table, 0.1, 1.0)


@pytest.mark.parametrize("output", ["", WRK.replace("Requests/sec", "Requests/min")])
def test_other_output_is_not_understood(output: str) -> None:
    with pytest.raises(UnavailableError, match="not understood"):
        parse_wrk(output, 0.1)


@pytest.mark.parametrize(
    ("measured", "believed"),
    [
        (Measured(100, 5.0, 50.0, 100.0, 1.0), True),
        (Measured(100, 5.9, 54.0, 109.0, 1.0), True),
        (Measured(100, 6.1, 50.0, 100.0, 1.0), False),
        (Measured(100, 5.0, 44.0, 100.0, 1.0), False),
        (Measured(100, 5.0, 50.0, 111.0, 1.0), False),
    ],
)
def test_a_generator_is_believed_within_a_tenth_or_a_millisecond(
    measured: Measured, believed: bool
) -> None:
    assert measured.believed(Measured(100, 5.0, 50.0, 100.0, 1.0)) is believed
