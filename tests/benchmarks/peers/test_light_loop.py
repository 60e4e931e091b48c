"""The compiled open-loop client."""

import threading

import numpy as np
import pytest

from benchmarks.peers.light_loop import light_open_loop
from loadtests.records import Outcome
from tests.support.echo_server import echo_server, echo_workload

# The client is compiled in a process of its own.
pytestmark = pytest.mark.slow


def test_each_request_has_its_times_and_answers_are_checked() -> None:
    go, arrivals_s = threading.Event(), np.arange(40) * 0.02
    go.set()
    with echo_server(go) as port:
        run = light_open_loop(echo_workload(10), arrivals_s, port, connections=4, keep_every=1)
    ten = [1, 1, 1, 1, 503, 1, 1, 1, Outcome.WRONG, 1]
    assert run.outcome.tolist() == 4 * ten
    times_s = np.stack([run.due_s, run.sent_s, run.received_s, run.read_s])
    assert (np.diff(times_s, axis=0) > 0).all()
    assert (run.service_ms < run.response_ms).all()
    assert 0 < run.client_cpu_s < 1


def test_requests_wait_for_a_connection_and_those_without_an_answer_time_out() -> None:
    """The first three of each ten requests stall, on three of four connections."""
    go = threading.Event()
    with echo_server(go) as port:
        run = light_open_loop(echo_workload(8), np.zeros(8), port, connections=4, patience_s=2.0)
        go.set()
    assert run.outcome.tolist() == [*3 * [Outcome.TIMEOUT], 1, 503, 1, 1, 1]
    assert np.isnan(run.read_s[:3]).all()
    # The fourth connection carried the others, one after the other.
    assert (run.sent_s[4:] > run.received_s[3:-1]).all()
    assert (run.response_ms[3:] < 2e3).all()
