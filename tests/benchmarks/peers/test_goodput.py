"""The search for goodput, and its bound."""

import threading

import numpy as np
import pytest

from benchmarks.peers import goodput
from benchmarks.peers.models import DEVICE_PROFILE
from benchmarks.peers.open_loop import Run
from benchmarks.peers.protocols import Workload
from benchmarks.peers.sojourn_config import PERCENTILE
from loadtests.records import Outcome, Records
from policy.baseline_policies import work_conserving
from policy.profile import Profile
from policy.response_time.evaluation import evaluate
from tests.support.echo_server import echo_server, echo_workload


@pytest.mark.slow
def test_a_server_that_never_answers_misses_every_sla() -> None:
    with echo_server(threading.Event()) as closed_port:
        pass
    for rate_per_s in (10, 400):
        assert not goodput._probe(echo_workload(10), rate_per_s, 0.5, port=closed_port).holds


def test_one_bad_run_of_three_does_not_decide_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def probe(workload: Workload, rate_per_s: float, *_: float, seed: int = 0) -> goodput.Probe:
        asked.append(seed)
        # Up to 60/s can be kept, but the first run is unlucky.
        right = rate_per_s <= 60 and len(asked) != 2
        return goodput.Probe(rate_per_s, float(right), 0, 0.0)

    monkeypatch.setattr(goodput, "_probe", probe)
    monkeypatch.setattr(goodput, "settle", lambda *_: None)
    probes = goodput.goodput(echo_workload(1), 100 / 1.1, 1.0, 3)
    # Each rate has arrivals of its own in each run; the first run of all only warms up.
    assert asked == [0, 0, 1, 2, 0, 1, 0, 1]
    assert [probe.arrival_rate_per_s for probe in probes] == [50, 75, 62.5]
    assert goodput.best_rate_per_s(probes) == 50


@pytest.mark.slow
def test_the_possible_rate_keeps_the_sla_and_one_percent_more_does_not() -> None:
    possible_per_s = goodput.possible_rate_per_s()
    profile = Profile.from_dict(DEVICE_PROFILE)

    def kept(rate_per_s: float) -> bool:
        evaluation = evaluate(profile, work_conserving(profile), rate_per_s)
        return evaluation.service_level(goodput.RESPONSE_TIME_MS) >= PERCENTILE / 100

    # Near capacity, waiting for a larger batch never helps, so the work-conserving policy decides.
    assert kept(0.999 * possible_per_s)
    assert not kept(1.01 * possible_per_s)


def test_in_time_means_answered_within_the_sla() -> None:
    records = Records.begin(np.zeros(3))
    records.outcome[:] = [Outcome.OK, Outcome.OK, Outcome.TIMEOUT]
    records.finished_s[:] = [0.015, 0.1, 0.01]
    run = Run(0.0, records, [b""] * 3)
    assert goodput.in_time(run, 20.0).tolist() == [True, False, False]
    assert goodput.in_time(run).tolist() == [True, True, False]
