"""Which blob goes first under each rule."""

import pytest

from deployments.modelstore.core.eviction import EVICTION_RULES, IdleBlob

BLOBS = {
    "old": IdleBlob(size_bytes=100, last_use=1, uses=9, reload_s_per_byte=1e-8),
    "rare": IdleBlob(size_bytes=100, last_use=3, uses=1, reload_s_per_byte=1e-8),
    "on disk": IdleBlob(size_bytes=200, last_use=5, uses=5, reload_s_per_byte=1e-9),
}


@pytest.mark.parametrize(
    ("name", "first"), [("lru", "old"), ("lcu", "rare"), ("reload-time", "on disk")]
)
def test_the_blob_that_goes_first(name, first):
    rule = EVICTION_RULES[name]
    assert min(BLOBS, key=lambda blob: rule(BLOBS[blob])) == first
