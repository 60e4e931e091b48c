import psutil
import pytest
import torch

from deployments.models.weights import WeightsLoader
from deployments.modelstore import tensors
from deployments.modelstore.client import ask, list_models
from deployments.modelstore.core.actions import Tier
from deployments.modelstore.core.transfers import Transfers
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
    publish_models,
    right,
    settings_for,
    stats,
    wait_until,
    wait_until_idle,
    weights,
)
from tests.support.waiting import has_ended


def device_settings(folder, **options):
    publish_models(folder)
    given = {"device_bytes": 20 * MB, "device_driver": emulated_device.MODULE}
    return settings_for(folder, **(given | options))


def attach(store, name="m", client=None):
    return attach_to_device(name, client or EmulatedClient(), store)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("device")
    with manager_thread(device_settings(folder)) as socket_path:
        yield socket_path


@pytest.fixture
def store(shared):
    """A store that tests share; each leaves it as it was."""
    yield shared
    wait_until_idle(shared)
    for model in list_models(shared):
        ask("evict", model["name"], shared)


def test_processes_share_one_copy(store):
    first, source = attach(store)
    second, then = attach(store)
    assert right(first)
    assert (source, then) == ("disk" if source == "disk" else "remote", "device")
    second["weight"][0, 0] = 7.0
    assert first["weight"][0, 0] == 7.0
    assert stats(store)["tiers"]["device"]["blobs"] == 1
    kept = first.pop("bias")
    del first, second
    wait_until(lambda: stats(store)["leases"] == 1)
    assert bool((kept.numpy() == weights(0, floats=20_000)["bias"]).all())


def test_memory_to_compute_in_is_kept_free_and_times_are_measured(tmp_path):
    with manager_thread(device_settings(tmp_path, device_bytes=4 << 20)) as store:
        kept, _ = attach(store, "n")
        for _ in range(2):
            attach(store)
            wait_until(lambda: stats(store)["leases"] == 1)
        row, _ = list_models(store)
        assert row["attach_ms"]["device"] > 0
        assert set(row["copy_ms"]) == {"host", "disk", "remote"}
        ask("uses", "n", store, bytes=2 << 20)
        device = stats(store)["tiers"]["device"]
        assert (device["kept_free_bytes"], device["blobs"], device["evictions"]) == (2 << 20, 1, 1)
        with pytest.raises(StoreFullError, match="needs"):
            attach(store)
        assert right(kept, 1)


def test_a_replica_reports_what_it_computes_in(store, monkeypatch):
    for name, value in (("max_memory_allocated", 7), ("memory_allocated", 4)):
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    kept, _ = attach(store, "n")
    weights = WeightsLoader(socket_path=store)
    weights("store://n")
    for device, kept_free_bytes in (("cpu", 0), ("cuda", 3)):
        with weights.computing(device):
            pass
        assert stats(store)["tiers"]["device"]["kept_free_bytes"] == kept_free_bytes
    assert right(kept, 1)


@pytest.mark.parametrize(
    ("device_bytes", "host_bytes", "error", "said"),
    [
        (1000, 50 * MB, OutOfDeviceMemoryError, "1000 of"),
        (20 * MB, 1000, StoreFullError, "filled from host memory"),
    ],
)
def test_no_room_on_the_device_or_on_the_way_is_an_error_whatever_the_budget_says(
    tmp_path, monkeypatch, device_bytes, host_bytes, error, said
):
    monkeypatch.setenv(emulated_device.SIZE_VARIABLE, str(device_bytes))
    with manager_thread(device_settings(tmp_path, host_bytes=host_bytes)) as store:
        with pytest.raises(error, match=said):
            attach(store)
        assert stats(store)["tiers"]["device"]["used_bytes"] == 0


def test_a_client_with_another_device_is_refused_and_holds_nothing(store):
    with pytest.raises(DeviceError, match="the store's device is emulated"):
        attach(store, client=EmulatedClient("another"))
    wait_until_idle(store)


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(tensors, "CudaClient", lambda ordinal: EmulatedClient())


def test_what_cannot_be_shared_is_copied_and_one_line_says_why(tmp_path, gpu, monkeypatch, caplog):
    publish_models(tmp_path)
    copied = []

    def to(tensor, device):
        copied.append(str(device))
        return tensor

    monkeypatch.setattr(torch.Tensor, "to", to)
    with manager_thread(settings_for(tmp_path)) as store:
        assert right(load_state_dict("m", "cuda:0", socket_path=store))
    assert copied == ["cuda:0"] * 2
    said = "m: copied to cuda:0, not shared: this store has no device"
    assert [said in record.message for record in caplog.records] == [True]


def test_a_gpus_client_shares_by_itself(store, gpu, caplog, monkeypatch):
    # On a busy machine the emulated GPU may measure a copy as faster.
    monkeypatch.setattr(Transfers, "copy_s", lambda *_: {Tier.HOST: 1e9})
    state, _ = tensors.attach("m", socket_path=store, device="cuda:0")
    assert right(state)
    assert tensors.attach("m", socket_path=store, device="cuda:0")[1] == "device"
    assert not caplog.records


@pytest.mark.slow
def test_a_holder_that_dies_in_the_middle_of_a_copy_is_started_again(tmp_path, monkeypatch):
    dies = tmp_path / "dies"
    monkeypatch.setenv(DEATH_VARIABLE, str(dies))
    with manager_thread(device_settings(tmp_path)) as store:
        held, _ = attach(store, "n")
        dead = stats(store)["device"]["holder_pid"]
        dies.touch()
        state, _ = attach(store)
        assert right(state)
        assert right(held, seed=1)
        assert stats(store)["device"]["holder_pid"] != dead
        assert stats(store)["tiers"]["device"]["blobs"] == 2


@pytest.mark.slow
def test_a_killed_manager_takes_its_holder_along_and_clients_keep_their_weights(tmp_path):
    with ManagerProcess(device_settings(tmp_path)) as manager:
        store = manager.settings.socket
        held, _ = attach(store)
        holder = psutil.Process(stats(store)["device"]["holder_pid"])
        manager.kill()
        wait_until(lambda: has_ended(holder))
        assert right(held)
        manager.start()
        again, _ = attach(store)
        assert right(again)
        assert right(held)
