"""The open-loop client: due times, impatient clients, checked answers."""

import threading

import numpy as np

from benchmarks.peers.goodput import in_time
from benchmarks.peers.open_loop import Run, open_loop
from loadtests.records import Outcome
from tests.support.echo_server import echo_server, echo_workload


def test_a_stall_counts_from_due_times_and_answers_are_checked() -> None:
    go = threading.Event()
    arrivals_s = np.arange(10) * 0.01

    def release_stalled(run: Run) -> bool:
        # Release the stalled requests once the seven others are answered.
        if np.isfinite(run.records.finished_s[3:]).all():
            go.set()
        return False

    with echo_server(go) as port:
        run = open_loop(echo_workload(10), arrivals_s, stop_early=release_stalled, port=port)
    records = run.records
    assert records.outcome.tolist() == [1, 1, 1, 1, 503, 1, 1, 1, Outcome.WRONG, 1]
    last_s = np.nanmax(records.finished_s[3:])
    assert (records.finished_s[:3] >= last_s).all()
    # Response times count from due times, so a request due later in the stall waited less.
    assert (np.diff(records.response_ms[:3]) < 0).all()


def test_impatient_clients_leave_and_the_others_are_answered() -> None:
    go = threading.Event()
    patience_s = np.array([0.05, 0.05, 0.05, 10, 10])

    with echo_server(go) as port:
        run = open_loop(echo_workload(5), np.zeros(5), patience_s, port=port)
    assert run.records.outcome.tolist() == [Outcome.TIMEOUT] * 3 + [Outcome.OK, 503]
    assert not in_time(run)[[0, 1, 2, 4]].any()
