"""Tensors on a device's memory that processes share, with host memory as the device's."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from deployments.modelstore import tensors
from deployments.modelstore import tensors as tensors_module
from deployments.modelstore.client import ask
from deployments.modelstore.device.tensors import attach_to_device
from deployments.modelstore.errors import (
    DeviceError,
    OutOfDeviceMemoryError,
    StoreFullError,
)
from deployments.modelstore.tensors import load_state_dict
from tests.support.models import emulated_device
from tests.support.models.emulated_device import DEATH_VARIABLE, EmulatedClient
from tests.support.models.model_stores import (
    MB,
    ManagerProcess,
    manager_thread,
    publish,
    settings_for,
    sign,
    wait_until,
    weights,
)


def device_settings(folder, **options):
    given = {"device_bytes": 20 * MB, "device_driver": emulated_device.MODULE}
    return settings_for(folder, **(given | options))


def attach(store, name="m", client=None):
    return attach_to_device(name, client or EmulatedClient(), store)


def right(state, seed=0):
    expected = weights(seed, floats=20_000)
    return all(bool((state[name].numpy() == expected[name]).all()) for name in expected)


def stats(store):
    return ask("stats", socket_path=store)


def publish_models(folder):
    for seed, name in enumerate(("m", "n")):
        publish(folder / "remote", name, {"model.safetensors": weights(seed, floats=20_000)})


def command_line(pid):
    """Return a process's command line, which is empty once it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store that tests share; each leaves it as it was."""
    folder = tmp_path_factory.mktemp("device")
    publish_models(folder)
    with manager_thread(device_settings(folder)) as socket_path:
        yield socket_path


@pytest.fixture(autouse=True)
def idle_afterwards(request):
    yield
    if "store" in request.fixturenames:
        socket_path = request.getfixturevalue("store")
        wait_until(lambda: stats(socket_path)["leases"] == 0)
        for model in ask("models", socket_path=socket_path):
            ask("evict", model["name"], socket_path)


def test_processes_share_one_copy(store):
    first, source = attach(store)
    second, then = attach(store)
    assert right(first)
    assert (source, then) == ("disk" if source == "disk" else "remote", "device")
    second["weight"][0, 0] = 7.0
    assert first["weight"][0, 0] == 7.0
    assert stats(store)["tiers"]["device"]["blobs"] == 1


def test_the_lease_ends_with_the_last_tensor(store):
    state, _ = attach(store)
    kept = state.pop("bias")
    del state
    assert stats(store)["leases"] == 1
    assert bool((kept.numpy() == weights(0, floats=20_000)["bias"]).all())
    del kept
    wait_until(lambda: stats(store)["leases"] == 0)


def test_an_idle_model_leaves_the_device_when_another_needs_the_room(tmp_path):
    publish_models(tmp_path)
    with manager_thread(device_settings(tmp_path, device_bytes=3 * MB)) as store:
        state, _ = attach(store)
        with pytest.raises(StoreFullError, match="device"):
            attach(store, "n")
        del state
        wait_until(lambda: stats(store)["leases"] == 0)
        state, _ = attach(store, "n")
        assert right(state, seed=1)
        assert stats(store)["tiers"]["device"]["evictions"] == 1


def test_a_device_without_room_refuses_whatever_the_budget_says(tmp_path, monkeypatch):
    publish_models(tmp_path)
    monkeypatch.setenv(emulated_device.SIZE_VARIABLE, "1000")
    with manager_thread(device_settings(tmp_path)) as store:
        with pytest.raises(OutOfDeviceMemoryError, match="1000 of"):
            attach(store)
        assert stats(store)["tiers"]["device"]["used_bytes"] == 0


def test_host_memory_without_room_for_the_way_is_an_error(tmp_path):
    publish_models(tmp_path)
    with (
        manager_thread(device_settings(tmp_path, host_bytes=1000)) as store,
        pytest.raises(StoreFullError, match="filled from host memory"),
    ):
        attach(store)


def test_all_types_and_empty_tensors_arrive(store):
    tensors = {
        name: torch.arange(7).to(dtype)
        for name, dtype in {
            "bf16": torch.bfloat16, "f8": torch.float8_e4m3fn, "bool": torch.bool,
            "u8": torch.uint8, "i64": torch.int64, "f16": torch.float16, "f64": torch.float64,
        }.items()
    } | {"empty": torch.empty(0, 3, dtype=torch.bfloat16)}  # fmt: skip
    folder = store.parents[1] / "remote/pytorch/types/1"
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    sign(folder)
    state, _ = attach(store, "types")
    expected = load_file(folder / "model.safetensors")
    assert state.keys() == expected.keys()
    for name, tensor in expected.items():
        assert state[name].dtype == tensor.dtype
        assert state[name].shape == tensor.shape
        assert torch.equal(state[name].to(torch.float64), tensor.to(torch.float64))
        assert state[name].untyped_storage().nbytes() == tensor.untyped_storage().nbytes()


def test_a_client_with_another_device_is_refused_and_holds_nothing(store):
    with pytest.raises(DeviceError, match="the store's device is emulated"):
        attach(store, client=EmulatedClient("another"))
    wait_until(lambda: stats(store)["leases"] == 0)


@pytest.mark.parametrize("share", [True, False])
def test_what_cannot_be_shared_is_copied_and_one_line_says_why(
    tmp_path, monkeypatch, caplog, share
):
    publish_models(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(tensors_module, "CudaClient", lambda ordinal: EmulatedClient())
    copied = []

    def to(tensor, device):
        copied.append(device)
        return tensor

    monkeypatch.setattr(torch.Tensor, "to", to)
    with manager_thread(settings_for(tmp_path)) as store:
        state = load_state_dict("m", "cuda:0", socket_path=store, share=share)
        assert right(state)
    assert copied == [torch.device("cuda:0")] * 2
    lines = [record.message for record in caplog.records]
    assert len(lines) == share
    assert all("m: copied to cuda:0, not shared: this store has no device" in x for x in lines)


def test_a_gpus_client_shares_by_itself(store, monkeypatch, caplog):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(tensors_module, "CudaClient", lambda ordinal: EmulatedClient())
    state, _ = tensors.attach("m", socket_path=store, device="cuda:0")
    assert right(state)
    assert tensors.attach("m", socket_path=store, device="cuda:0")[1] == "device"
    assert not caplog.records


@pytest.mark.slow
def test_memory_outlives_a_killed_holder(tmp_path):
    publish_models(tmp_path)
    with manager_thread(device_settings(tmp_path)) as store:
        held, _ = attach(store)
        copies = stats(store)["copies"][0]["bytes"]
        os.kill(stats(store)["device"]["holder_pid"], signal.SIGKILL)
        again, source = attach(store)
        assert right(again)
        assert right(held)
        assert source == "device"
        assert stats(store)["copies"][0]["bytes"] == copies
        other, _ = attach(store, "n")
        assert right(other, seed=1)
        assert stats(store)["device"]["holder_starts"] == 2


@pytest.mark.slow
def test_a_holder_that_dies_in_the_middle_of_a_copy_is_started_again(tmp_path, monkeypatch):
    publish_models(tmp_path)
    dies = tmp_path / "dies"
    monkeypatch.setenv(DEATH_VARIABLE, str(dies))
    with manager_thread(device_settings(tmp_path)) as store:
        held, _ = attach(store, "n")
        dies.touch()
        state, _ = attach(store)
        assert right(state)
        assert right(held, seed=1)
        assert stats(store)["device"]["holder_starts"] == 2
        assert stats(store)["tiers"]["device"]["blobs"] == 2


@pytest.mark.slow
def test_a_killed_manager_takes_its_holder_along_and_clients_keep_their_weights(tmp_path):
    publish_models(tmp_path)
    with ManagerProcess(device_settings(tmp_path)) as manager:
        store = manager.settings.socket
        held, _ = attach(store)
        holder = stats(store)["device"]["holder_pid"]
        manager.kill()
        wait_until(lambda: not command_line(holder))
        assert right(held)
        manager.start()
        again, _ = attach(store)
        assert right(again)
        assert right(held)
