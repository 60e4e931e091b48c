"""Small models are copied, where the estimate says that this is faster."""

import json
import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.modelstore import sharing as sharing_module
from deployments.modelstore.client import ask
from deployments.modelstore.names import Blob, Manifest
from deployments.modelstore.sharing import (
    MAX_COPIED_BYTES,
    SharingCosts,
    cached_costs,
    copy_of,
    measure_costs,
)
from deployments.modelstore.tensors import attach
from tests.support.models.model_stores import (
    manager_thread,
    publish,
    settings_for,
    wait_until,
    weights,
)

#: Sharing costs 10 µs a file, copying 1 ns a byte: they cost the same at 10,000 bytes.
COSTS = SharingCosts(1e-5, 0.0, 0.0, 1e-9)
SECONDS = st.floats(0, 1e-3)


def model(*sizes_bytes):
    blobs = [Blob(f"{index:064}", size) for index, size in enumerate(sizes_bytes)]
    return Manifest(tuple((f"{blob.sha256}.safetensors", blob) for blob in blobs))


@pytest.mark.parametrize(
    ("sizes_bytes", "shared"),
    [
        ((9_999,), False),
        ((10_000,), True),
        ((15_000, 1_000), False),  # two mappings cost what 20,000 bytes do
        ((25_000, 1_000), True),
    ],
)
def test_each_file_costs_a_mapping_and_each_byte_its_copy(sizes_bytes, shared):
    assert COSTS.decide(model(*sizes_bytes)).shared is shared
    assert COSTS.shared_from_bytes == 10_000


@settings(max_examples=50)
@given(
    SECONDS, SECONDS, SECONDS, SECONDS, st.lists(st.integers(1, 10 << 20), min_size=1, max_size=20)
)
def test_the_faster_way_is_taken_and_large_models_are_shared(share, touch, copy, byte, sizes):
    costs = SharingCosts(share, 1e-6 * touch, copy, 1e-6 * byte)
    decided = costs.decide(model(*sizes))
    if decided.shared:
        assert decided.share_us <= decided.copy_us or sum(sizes) > MAX_COPIED_BYTES
    else:
        assert decided.copy_us < decided.share_us
        assert sum(sizes) <= MAX_COPIED_BYTES
    assert 0 <= costs.shared_from_bytes <= MAX_COPIED_BYTES


def test_the_costs_are_measured_once_and_kept(tmp_path, monkeypatch):
    path = tmp_path / "costs.json"
    first = cached_costs(path)
    # A byte is copied in more than no time, and a page is mapped with more than nothing.
    assert first.copy_s_per_byte > 0
    assert first.share_s > 0
    monkeypatch.setattr(sharing_module, "measure_costs", lambda: pytest.fail("measured again"))
    assert cached_costs(path) == first


@pytest.mark.parametrize("content", ["", "[]", '{"machine": "another"}', None])
def test_costs_of_another_machine_or_a_broken_file_are_measured_anew(
    tmp_path, monkeypatch, content
):
    path = tmp_path / "costs.json"
    cached_costs(path)
    path.write_text(
        content if content is not None else json.dumps({**json.loads(path.read_text()), "more": 1})
    )
    monkeypatch.setattr(sharing_module, "measure_costs", lambda: COSTS)
    assert cached_costs(path) == COSTS
    assert cached_costs(path) == COSTS


def test_a_copy_is_whole_or_an_error(tmp_path):
    content = os.urandom(100_000)
    path = tmp_path / "file"
    path.write_bytes(content)
    with open(path, "rb") as file:
        assert copy_of(file.fileno(), len(content)) == content
        with pytest.raises(OSError, match="ends after 100000"):
            copy_of(file.fileno(), len(content) + 1)


def test_measuring_leaves_no_descriptor_behind():
    before = len(os.listdir("/proc/self/fd"))
    measure_costs()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr(sharing_module, "measure_costs", lambda: COSTS)
    for seed, (name, floats) in enumerate((("small", 1000), ("large", 10_000))):
        publish(tmp_path / "remote", name, {"model.safetensors": weights(seed, floats)})
    with manager_thread(settings_for(tmp_path, always_share=False)) as socket_path:
        yield socket_path


def test_a_copied_model_is_given_back_at_once_and_keeps_its_values(store):
    attached = attach("small", socket_path=store)
    assert not attached.sharing.shared
    assert attached.sharing.copy_us < attached.sharing.share_us == pytest.approx(10)
    wait_until(lambda: ask("stats", socket_path=store)["leases"] == 0)
    ask("evict", "small", store)
    assert torch.equal(attached.tensors["weight"], torch.from_numpy(weights(0)["weight"]))


def test_a_larger_model_is_shared_and_the_counters_tell_both(store):
    attached = attach("large", socket_path=store)
    assert attached.sharing.shared
    attach("small", socket_path=store)
    sharing = ask("stats", socket_path=store)["sharing"]
    assert (sharing["shared"], sharing["copied"]) == (1, 1)
    assert sharing["shared_from_bytes"] == 10_000
    assert ask("stats", socket_path=store)["leases"] >= 1
