import os

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from deployments.pipelines.workers.arena import Arena

values = st.recursive(
    st.one_of(
        st.none(),
        st.integers(),
        st.binary(max_size=300),
        st.builds(np.zeros, st.integers(1, 1 << 18)),  # the memory grows
        arrays.arrays(np.float32, arrays.array_shapes(max_dims=3)),
    ),
    lambda inner: st.lists(inner, max_size=5),
    max_leaves=10,
)


@settings(max_examples=30)
@given(written=st.lists(values, min_size=1, max_size=5), copy=st.booleans())
def test_the_other_side_reads_what_was_written(written, copy):
    ours = Arena()
    theirs = Arena(os.dup(ours.descriptor))
    for value in written:
        np.testing.assert_equal(theirs.read(ours.write(value), copy), value)
    assert theirs.size <= ours.size
    ours.close()
    theirs.close()


def test_only_without_a_copy_the_arrays_lie_in_the_memory():
    arena = Arena()
    size = arena.write(np.zeros(100))
    copied, shared = arena.read(size, copy=True), arena.read(size, copy=False)
    arena.write(np.ones(100))
    assert (copied.sum(), shared.sum()) == (0, 100)
    arena.close()
