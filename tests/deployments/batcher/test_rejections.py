import math
from dataclasses import replace

import pytest

from deployments.batcher.queued_request import Outcome, QueuedRequest
from deployments.batcher.rejections import FULL, TOO_LATE
from deployments.batcher.rejections import RejectionHandler as Handler
from deployments.batcher.row_counts import RowCounts
from deployments.errors import BusyError, CrowdedOutError, DeadlineError, DeviceError
from policy.batcher.core import BatcherCore
from policy.batcher.requests import Refusal, Request
from tests.support.batching.batcher_core import make_core


def handler(core: BatcherCore):
    rows = RowCounts()
    return Handler(core, rows), rows


@pytest.mark.parametrize(
    ("refusal", "error", "says", "counter"),
    [
        (Refusal.FULL, BusyError, FULL, "refused"),
        (Refusal.DEADLINE, BusyError, "before the request's deadline", "refused"),
        (Refusal.HOPELESS, DeadlineError, "its own processing time", "deadline_missed"),
        (Refusal.EXPIRED, DeadlineError, TOO_LATE, "expired"),
    ],
)
def test_a_refusal_says_whether_another_replica_may_help(refusal, error, says, counter):
    requests, rows = handler(make_core())
    answer = requests.refused(refusal, 3)
    assert type(answer) is error
    assert says in str(answer)
    assert getattr(rows, counter) == 3
    assert (rows.refused_too_late, rows.pruned) == (3 - rows.refused, 0)


def test_what_is_rejected_unparsed_counts_as_offered_load():
    core = make_core()
    requests, rows = handler(core)
    requests.rejected(Refusal.FULL, [(10.0, 1), (10.1, 6)], 10.2)
    assert (rows.offered, rows.refused) == (7, 7)
    assert core.arrival_rate.per_s(10.2) > 0


def too_late(requests: Handler, request: Request, _):
    requests.too_late(request)


def crowded_out(requests: Handler, request: Request, _):
    requests.crowded_out(request)


def lost(requests: Handler, request: Request, now_s):
    requests.lost(request, DeviceError("it hangs"), now_s)


@pytest.mark.parametrize(
    ("happens", "now_s", "deadline_s", "error", "says", "counts"),
    [
        (too_late, 0.0, math.inf, DeadlineError, TOO_LATE, {"expired", "pruned"}),
        (too_late, 0.0, 5.0, DeadlineError, "cannot be met", {"deadline_missed", "pruned"}),
        # A request without time here is tried elsewhere, if there is time.
        (Handler.given_up, 0.05, math.inf, BusyError, "no time left", {"refused"}),
        (Handler.given_up, 0.5, math.inf, DeadlineError, TOO_LATE, {"expired", "pruned"}),
        (crowded_out, 0.0, math.inf, CrowdedOutError, "retry queue is full", {"refused"}),
        # What hung a device for longer than the SLA hangs no other.
        (lost, 0.05, math.inf, DeviceError, "it hangs", set()),
        (lost, 0.5, math.inf, DeadlineError, TOO_LATE, {"expired", "pruned"}),
    ],
)
def test_a_request_that_gets_no_outputs_is_told_why_and_counted_once(
    happens, now_s, deadline_s, error, says, counts
):
    core = make_core(control_limit=4)
    core.use(core.table, replace(core.limits, admit_within_ms=97.0, answer_within_ms=100.0))
    requests, rows = handler(core)
    outcomes: list[Outcome] = []
    request = QueuedRequest({}, 2)
    request.begin(0.0, outcomes.append, deadline_s)
    assert core.arrive(0.0, request) is None
    for _ in range(2):
        happens(requests, request, now_s)
    (outcome,) = outcomes
    assert type(outcome) is error
    assert says in str(outcome)
    assert core.queue_length == 0 or error is not DeadlineError
    kinds = ("expired", "deadline_missed", "pruned", "refused", "completed", "cancelled")
    assert {kind: getattr(rows, kind) for kind in kinds} == {
        kind: 2 * (kind in counts) for kind in kinds
    }


def test_later_requests_get_the_reason_for_which_the_device_is_lost():
    requests, rows = handler(make_core())
    requests.lost_reason = "it hangs"
    # Whatever the core says: no row may count as too late for a device that is no more.
    assert str(requests.refused(Refusal.EXPIRED, 1)) == "it hangs"
    assert (rows.refused, rows.expired) == (1, 0)
