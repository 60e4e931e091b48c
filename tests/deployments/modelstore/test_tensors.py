import numpy as np
import pytest
import safetensors.torch
import torch

from deployments.modelstore.device.tensors import attach_to_device
from deployments.modelstore.errors import (
    UnknownModelError,
    UntrustedFileError,
)
from deployments.modelstore.tensors import load_state_dict
from policy.errors import InvalidInputError
from tests.support.models import emulated_device
from tests.support.models.model_stores import (
    MB,
    manager_thread,
    publish,
    settings_for,
    sign,
    wait_until_idle,
    weights,
)


@pytest.fixture
def store(tmp_path):
    publish(tmp_path / "remote", "m", {"model.safetensors": weights(1)})
    with manager_thread(settings_for(tmp_path)) as socket_path:
        yield socket_path


def test_a_write_is_seen_by_the_writer_alone(store):
    first, second = (load_state_dict("m", socket_path=store) for _ in range(2))
    before = second["weight"].clone()
    first["weight"].fill_(7.0)
    assert bool((first["weight"] == 7.0).all())
    for other in (second, load_state_dict("m", socket_path=store)):
        assert torch.equal(other["weight"], before)


def test_a_tensor_in_two_files_is_refused(tmp_path):
    shards = {"model-1.safetensors": {"a": np.ones(3)}, "model-2.safetensors": {"a": np.zeros(2)}}
    publish(tmp_path / "remote", "m", shards)
    with manager_thread(settings_for(tmp_path)) as store:
        with pytest.raises(UntrustedFileError, match="in two files"):
            load_state_dict("m", socket_path=store)
        wait_until_idle(store)


def test_every_dtype_empty_tensors_and_unaligned_ones_in_memory_and_on_a_device(tmp_path):
    folder = publish(tmp_path / "remote", "m", {})
    types = "bfloat16", "float8_e4m3fn", "bool", "uint8", "int64", "float16", "float64"
    tensors = {name: torch.arange(7).to(getattr(torch, name)) for name in types}
    tensors |= {"scalar": torch.tensor(3), "empty": torch.empty(0, 4, dtype=torch.bfloat16)}
    # Four spaces more in the header take the data off the boundary of eight bytes.
    file = safetensors.torch.save(tensors)
    length = int.from_bytes(file[:8], "little")
    header, data = file[8 : 8 + length], file[8 + length :]
    content = (length + 4).to_bytes(8, "little") + header + b"    " + data
    (folder / "model.safetensors").write_bytes(content)
    sign(folder)
    device = {"device_bytes": 20 * MB, "device_driver": emulated_device.MODULE}
    with manager_thread(settings_for(tmp_path, **device)) as store:
        for state in (
            load_state_dict("m", socket_path=store),
            attach_to_device("m", emulated_device.EmulatedClient(), store)[0],
        ):
            assert state.keys() == tensors.keys()
            for name, tensor in tensors.items():
                assert (state[name].dtype, state[name].shape) == (tensor.dtype, tensor.shape)
                assert torch.equal(state[name].to(torch.float64), tensor.to(torch.float64))
                assert state[name].untyped_storage().nbytes() == tensor.untyped_storage().nbytes()


def test_errors_reach_the_client(store):
    for name, error in (("missing", UnknownModelError), ("../m", InvalidInputError)):
        with pytest.raises(error, match=r"SHA256SUMS|letters"):
            load_state_dict(name, socket_path=store)
