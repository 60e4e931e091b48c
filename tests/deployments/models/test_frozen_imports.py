import gc
import weakref

from deployments.models.frozen_imports import frozen_imports


class Knot:
    def __init__(self):
        self.itself = self


def test_the_collector_rests_meanwhile_and_leaves_what_was_made():
    frozen = gc.get_freeze_count()
    with frozen_imports():
        assert not gc.isenabled()
        kept = weakref.ref(Knot())
    assert gc.isenabled()
    freed = weakref.ref(Knot())
    gc.collect()
    assert kept() is not None
    assert freed() is None
    if not frozen:
        gc.unfreeze()
