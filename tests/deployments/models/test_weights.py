import gc

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch

from deployments.config.replica_args import ModelConfig
from deployments.models.base import Model, TensorSpec
from deployments.models.digits import WEIGHTS
from deployments.models.loading import load_model
from deployments.models.weights import WeightsLoader, load_weights
from deployments.modelstore import tensors
from deployments.modelstore.client import ask
from deployments.serving.service_loading import load_service
from deployments.serving.service_start import ServiceStart
from policy.errors import InvalidInputError
from tests.support.models.model_stores import manager_thread, publish, settings_for


@pytest.fixture
def store(tmp_path, monkeypatch):
    publish(
        tmp_path / "remote", "digits", {"model.safetensors": safetensors.numpy.load_file(WEIGHTS)}
    )
    with manager_thread(settings_for(tmp_path)) as socket_path:
        monkeypatch.setenv("SOJOURN_STORE", str(socket_path))
        yield socket_path


class OnlyDevice(Model):
    inputs = outputs = (TensorSpec("x", "FP32"),)

    def load(self, device):
        self.loaded_on = device

    def forward(self, batch):
        return dict(batch)


class AsksForWeights(OnlyDevice):
    def load(self, device, weights=None):
        self.loaded_on = device
        self.weights = weights


def test_a_model_gets_a_source_of_weights_only_if_it_asks(store):
    plain = load_model(f"{__name__}:OnlyDevice", {}, "cpu")
    assert isinstance(plain, OnlyDevice)
    assert plain.loaded_on == "cpu"
    model = load_model(f"{__name__}:AsksForWeights", {}, "cpu")
    assert isinstance(model, AsksForWeights)
    assert model.weights("store://digits").keys() == load_weights(WEIGHTS).keys()


def test_digits_from_the_store_answers_as_from_its_file(store):
    shared = load_model("digits", {"weights": "store://digits"}, "cpu")
    own = load_model("digits", {}, "cpu")
    batch = own.example(3)
    assert ask("stats", socket_path=store)["leases"] == 1
    np.testing.assert_array_equal(
        shared.forward(batch)["probabilities"], own.forward(batch)["probabilities"]
    )


def test_the_config_replaces_what_the_model_asks_for(store):
    loader = WeightsLoader("store://digits", store)
    state = loader("a-file-that-is-not-there.safetensors")
    assert state.keys() == load_weights(WEIGHTS).keys()
    assert (loader.source, loader.found_in) == ("store://digits", "remote")
    loader("a-file-that-is-not-there.safetensors")
    assert loader.found_in == "host"
    with pytest.raises(InvalidInputError, match="cannot replace both"):
        loader("another.safetensors")


def test_weights_in_the_config_of_a_model_that_takes_none_are_an_error():
    config = ModelConfig(name="m", import_path=f"{__name__}:OnlyDevice", weights="file")
    with pytest.raises(InvalidInputError, match="second parameter `weights`"):
        load_service(config)


class LoadsByItself(OnlyDevice):
    def load(self, device):
        self.state = safetensors.torch.load_file(WEIGHTS)


def test_a_model_that_knows_no_store_shares_what_it_loads(store):
    found = []
    for _ in range(2):
        start = ServiceStart(store_socket=store)
        config = ModelConfig(name="m", import_path=f"{__name__}:LoadsByItself", share=True)
        service = load_service(config, start=start)
        found.append((start.explain()["weights"], start.explain()["weights_found_in"]))
        assert ask("stats", socket_path=store)["leases"] == 1
        del service
        gc.collect()
    assert found == [(str(WEIGHTS), "file"), (str(WEIGHTS), "host")]


def test_a_model_that_has_nothing_to_share_is_an_error(store):
    config = ModelConfig(name="m", import_path=f"{__name__}:OnlyDevice", share=True)
    with pytest.raises(InvalidInputError, match="leave the setting out"):
        load_service(config, start=ServiceStart(store_socket=store))


def test_the_device_that_a_model_names_is_that_of_its_tensors(monkeypatch):
    monkeypatch.setattr(tensors, "attach", lambda name, socket_path, device: (device, "host"))
    loader = WeightsLoader()
    assert [loader("store://digits", *device) for device in (["cuda:0"], [])] == ["cuda:0", "cpu"]
