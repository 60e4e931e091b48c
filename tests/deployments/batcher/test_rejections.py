"""Requests without outputs: each is told why, and its rows are counted once."""

import math
from dataclasses import replace

import pytest

from deployments.batcher.queued_request import Outcome, QueuedRequest
from deployments.batcher.rejections import TOO_LATE, RejectionHandler
from deployments.batcher.row_counts import RowCounts
from deployments.errors import BusyError, CrowdedOutError, DeadlineError, DeviceError, RequestError
from policy.batcher.core import BatcherCore
from policy.batcher.requests import Refusal
from tests.support.batching.batcher_core import make_core


class Sender:
    """Sends a request of two rows to a core, and keeps its outcomes."""

    def __init__(self, core: BatcherCore, deadline_s: float = math.inf) -> None:
        self.outcomes: list[Outcome] = []
        self.request = QueuedRequest({}, 2)
        self.request.begin(0.0, self.outcomes.append, deadline_s)
        assert core.arrive(0.0, self.request) is None


def handler(core: BatcherCore | None = None) -> tuple[RejectionHandler, BatcherCore, RowCounts]:
    core, rows = core or make_core(control_limit=4), RowCounts()
    return RejectionHandler(core, rows), core, rows


@pytest.mark.parametrize(
    ("refusal", "error", "says", "counter"),
    [
        (Refusal.FULL, BusyError, "0 rows are waiting", "refused"),
        (Refusal.DEADLINE, BusyError, "before the request's deadline", "refused"),
        (Refusal.HOPELESS, DeadlineError, "its own processing time", "deadline_missed"),
        (Refusal.EXPIRED, DeadlineError, TOO_LATE, "expired"),
    ],
)
def test_a_refusal_says_whether_another_replica_may_help(
    refusal: Refusal, error: type[RequestError], says: str, counter: str
) -> None:
    requests, _, rows = handler()
    answer = requests.refused(refusal, 3)
    assert type(answer) is error
    assert says in str(answer)
    assert getattr(rows, counter) == 3
    assert (rows.refused_too_late, rows.pruned) == (3 - rows.refused, 0)


def test_what_is_rejected_unparsed_counts_as_offered_load() -> None:
    requests, core, rows = handler(make_core(max_queue_rows=0))
    requests.rejected(Refusal.FULL, [(10.0, 1), (10.1, 6)], 10.2)
    assert (rows.offered, rows.refused) == (7, 7)
    assert core.arrival_rate.per_s(10.2) > 0


@pytest.mark.parametrize(
    ("deadline_s", "counter", "says"),
    [(math.inf, "expired", TOO_LATE), (5.0, "deadline_missed", "deadline cannot be met")],
)
def test_a_request_that_is_too_late_is_told_once_and_leaves_the_queue(
    deadline_s: float, counter: str, says: str
) -> None:
    requests, core, rows = handler()
    sender = Sender(core, deadline_s)
    requests.too_late(sender.request)
    requests.too_late(sender.request)
    (outcome,) = sender.outcomes
    assert isinstance(outcome, DeadlineError)
    assert says in str(outcome)
    assert (rows.pruned, getattr(rows, counter), core.queue_length) == (2, 2, 0)


@pytest.mark.parametrize(
    ("now_s", "error", "counter"), [(0.05, BusyError, "refused"), (0.5, DeadlineError, "expired")]
)
def test_a_request_without_time_here_is_tried_elsewhere_if_there_is_time(
    now_s: float, error: type[RequestError], counter: str
) -> None:
    core = make_core(control_limit=4)
    core.use(core.table, replace(core.limits, admit_within_ms=97.0, answer_within_ms=100.0))
    requests, _, rows = handler(core)
    sender = Sender(core)
    requests.given_up(sender.request, now_s)
    requests.given_up(sender.request, now_s)
    (outcome,) = sender.outcomes
    assert type(outcome) is error
    assert getattr(rows, counter) == 2


def test_a_request_that_is_crowded_out_may_be_tried_elsewhere() -> None:
    requests, core, rows = handler()
    sender = Sender(core)
    requests.crowded_out(sender.request)
    requests.crowded_out(sender.request)
    (outcome,) = sender.outcomes
    assert isinstance(outcome, CrowdedOutError)
    assert rows.refused == 2


@pytest.mark.parametrize(("now_s", "error"), [(0.05, DeviceError), (0.5, DeadlineError)])
def test_what_hung_a_device_for_longer_than_the_sla_hangs_no_other(
    now_s: float, error: type[RequestError]
) -> None:
    core = make_core(control_limit=4)
    core.use(core.table, replace(core.limits, admit_within_ms=97.0, answer_within_ms=100.0))
    requests, _, _ = handler(core)
    sender = Sender(core)
    requests.device_lost("it hangs", core.device_lost(), now_s)
    assert [type(outcome) for outcome in sender.outcomes] == [error]


def test_requests_of_a_lost_device_get_the_reason_and_so_do_later_ones() -> None:
    requests, core, rows = handler()
    sender = Sender(core)
    requests.device_lost("it hangs", core.device_lost(), 0.0)
    assert [str(outcome) for outcome in sender.outcomes] == ["it hangs"]
    # Whatever the core says: no row may count as too late for a device that is no more.
    assert isinstance(requests.refused(Refusal.EXPIRED, 1), DeviceError)
    assert (rows.refused, rows.expired) == (1, 0)
