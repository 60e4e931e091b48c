"""The search for goodput, and its bound."""

import threading
from functools import partial

import numpy as np
import pytest

from benchmarks.peers import goodput
from benchmarks.peers.models import DEVICE_PROFILE
from benchmarks.peers.open_loop import Run, open_loop
from benchmarks.peers.sojourn_config import PERCENTILE
from loadtests.records import Outcome, Records
from policy.baseline_policies import work_conserving
from policy.profile import Profile
from policy.response_time.evaluation import evaluate
from tests.support.echo_server import echo_server, echo_workload


@pytest.mark.slow
def test_a_server_that_never_answers_misses_every_sla(monkeypatch: pytest.MonkeyPatch) -> None:
    with echo_server(threading.Event()) as closed_port:
        pass
    monkeypatch.setattr(goodput, "open_loop", partial(open_loop, port=closed_port))
    for rate_per_s in (10, 400):
        probe = goodput._probe(echo_workload(10), rate_per_s, 0.5)
        assert not probe.holds


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
