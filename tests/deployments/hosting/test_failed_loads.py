"""When a load that failed is tried again."""

import pytest

from deployments.hosting.failed_loads import PAUSE_S, FailedLoads
from deployments.modelstore.errors import FetchError, StoreFullError
from tests.support.models.hosted_models import config_of

B, OTHER = config_of("b", "1"), config_of("b", "2")
AWAY = FetchError("the remote is away")


class Clock:
    """A clock that stands until it is set."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_load_is_tried_again_once_after_each_pause() -> None:
    clock = Clock()
    failed = FailedLoads(clock)
    for _ in range(3):
        failed.note(B, AWAY)
        failed.note(B, AWAY)  # by another one who waited for the same load
        clock.now_s += 0.99 * PAUSE_S
        assert not failed.take_due(B)
        clock.now_s += 0.01 * PAUSE_S + 1e-6
        assert failed.take_due(B)
        assert not failed.take_due(B)  # it is under way


def test_only_the_version_that_failed_waits() -> None:
    failed = FailedLoads(Clock())
    failed.note(B, AWAY)
    with pytest.raises(FetchError):
        failed.raise_if_early(B)
    failed.raise_if_early(OTHER)
    assert not failed.take_due(OTHER)
    failed.forget(OTHER)
    assert B in failed
    failed.forget(B)
    assert B not in failed
    failed.raise_if_early(B)


def test_a_full_store_is_asked_at_every_request() -> None:
    failed = FailedLoads(Clock())
    failed.note(B, StoreFullError("b: needs 5 bytes"))
    failed.raise_if_early(B)
    assert not failed.take_due(B)
