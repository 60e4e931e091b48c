"""New weights from a real store: both versions side by side, then only the new ones are held."""

import gc
import shutil

import pytest
from safetensors.torch import load_file, save_file

from deployments.config.replica_args import ModelConfig
from deployments.hosting.reconciler import ModelReconciler
from deployments.hosting.repository import ModelRepository
from deployments.models.digits import WEIGHTS
from deployments.modelstore.client import ask, list_models
from deployments.serving.service_loading import load_service
from deployments.serving.service_start import ServiceStart
from tests.support.models.hosted_models import PROFILE, user_config
from tests.support.models.model_stores import manager_thread, settings_for, sign
from tests.support.waiting import until

CONFIG = ModelConfig(
    name="digits",
    import_path="digits",
    weights="store://digits@1",
    max_batch_size=4,
    profile=PROFILE.to_dict(),
)


@pytest.fixture
def store(tmp_path):
    for version, factor in (("1", 1.0), ("2", 0.0)):
        folder = tmp_path / "remote" / "pytorch" / "digits" / version
        folder.mkdir(parents=True)
        state = {name: factor * tensor for name, tensor in load_file(WEIGHTS).items()}
        save_file(state, folder / "model.safetensors")
        sign(folder)
    with manager_thread(settings_for(tmp_path)) as socket_path:
        yield socket_path
    shutil.rmtree(tmp_path / "remote")


def leases(socket_path):
    return {row["name"]: row["leases"] for row in list_models(socket_path)}


@pytest.mark.slow
async def test_the_old_weights_are_given_back_even_if_the_collector_does_not_look(store):
    def load(config):
        return load_service(config, start=ServiceStart(store_socket=store))

    first = load(CONFIG)
    repository = ModelRepository(first, [CONFIG], load)
    reconciler = ModelReconciler(repository, [CONFIG])
    await reconciler.configure(user_config())
    # A replica's objects are hidden from the collector once it has started.
    gc.collect()
    gc.freeze()
    try:
        del first
        assert leases(store) == {"pytorch/digits@1": 1}
        await (await reconciler.configure(user_config(digits={"version": "2"})))
        await until(lambda: not leases(store).get("pytorch/digits@1"))
        assert leases(store) == {"pytorch/digits@1": 0, "pytorch/digits@2": 1}
        told = repository.first.start.explain()
        assert told["weights"] == "store://pytorch/digits@2"
        assert told["weights_found_in"] == "remote"
        ask("evict", "digits@1", store)
    finally:
        gc.unfreeze()
        await repository.close(5)
