"""Medians over the rounds of the comparison, and what is counted as wrong."""

import pytest

from benchmarks.peers.closed_loop import ClosedLoop
from benchmarks.peers.goodput import Probe
from benchmarks.peers.offered import OfferedLoad
from benchmarks.peers.results import Results, Spread, median_cpu_us


def run(requests_per_s: float, wrong: int = 0, connections: int = 64) -> ClosedLoop:
    return ClosedLoop(
        connections, requests_per_s, 1.0, 2.0, 0, 10, wrong, 0.0, {"replica": requests_per_s / 100}
    )


def test_a_cell_is_the_median_of_its_rounds_with_the_extremes_beside_it() -> None:
    results = Results(1.0)
    results.closed["sojourn"] = {"mlp": [run(9000), run(100), run(8000), run(1, connections=1)]}
    results.closed["mosec"] = {"mlp": [run(4000)]}
    assert results.throughput() == {
        "sojourn": Spread(8000, 100, 9000),
        "mosec": Spread(4000, 4000, 4000),
    }
    assert results.to_dict()["sojourn_to"] == {"sojourn": 1.0, "mosec": 2.0}
    assert results.throughput()["sojourn"].text() == "8,000 [100-9,000]"
    assert results.throughput()["mosec"].text() == "4,000"


def test_goodput_is_the_median_of_each_rounds_best_rate() -> None:
    def search(*kept: float) -> list[Probe]:
        return [Probe(rate, 0.995, 0, 0.0) for rate in kept] + [Probe(9e9, 0.5, 0, 0.0)]

    results = Results(1.0)
    results.model_probes["sojourn"] = {"mlp": [search(10, 20), search(40), search(30)]}
    assert results.model_goodput() == {"mlp": {"sojourn": Spread(30, 20, 40)}}


def test_wrong_answers_of_every_kind_of_run_are_counted() -> None:
    results = Results(1.0)
    results.closed["mosec"] = {"mlp": [run(1, wrong=1), run(1, wrong=2)]}
    results.offered["mosec"] = [OfferedLoad(10, 1, 2, 1.0, 0.0, 4, 0.0, {})]
    results.model_probes["mosec"] = {"mlp": [[Probe(1, 1, 8, 0)], [Probe(1, 1, 16, 0)]]}
    results.probes["mosec"] = [Probe(1, 1, 32, 0)]
    assert results.wrong_by_server() == {"mosec": 63}


def test_cpu_time_of_a_part_that_one_round_lacks_counts_as_none() -> None:
    runs = [run(100), run(300), OfferedLoad(10, 1, 2, 1.0, 0.0, 0, 0.0, {"haproxy": 6.0})]
    assert median_cpu_us(runs) == pytest.approx({"haproxy": 0.0, "replica": 1.0})
