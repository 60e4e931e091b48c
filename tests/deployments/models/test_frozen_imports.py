"""What is imported is hidden from the collector, and what is loaded afterwards is not."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from deployments.models.frozen_imports import frozen_imports


class Knot:
    """An object that refers to itself, which only the collector can free."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    frozen = gc.get_freeze_count()
    yield
    if not frozen:
        gc.unfreeze()


def test_the_collector_rests_meanwhile_and_leaves_what_was_made() -> None:
    with frozen_imports():
        assert not gc.isenabled()
        kept = weakref.ref(Knot())
    assert gc.isenabled()
    freed = weakref.ref(Knot())
    gc.collect()
    assert kept() is not None
    assert freed() is None
