"""The metrics say what the core counted."""

from prometheus_client.parser import text_string_to_metric_families

from deployments.modelstore.core.actions import Copy, Tier
from deployments.modelstore.core.store_core import StoreCore
from deployments.modelstore.manager.prometheus import exposition
from deployments.modelstore.names import Blob, Manifest, ModelName

NAME = ModelName("pytorch", "m", "1")
BLOB = Blob("1" * 64, 10)


def test_the_metrics_of_one_cold_and_one_warm_open():
    core = StoreCore({Tier.HOST: 100, Tier.DISK: 200})
    core.known(NAME, Manifest((("m.safetensors", BLOB),)))
    [copy] = core.open("a", NAME)
    while isinstance(copy, Copy):
        copy = core.copied(copy.blob, copy.target, seconds=0.5)[0]
    core.open("b", NAME)
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(exposition(core.stats()))
        for sample in family.samples
    }
    assert samples["sojourn_store_opens_total",] == 2
    assert samples["sojourn_store_leases",] == 2
    assert samples["sojourn_store_hits_total", "host"] == 1
    assert samples["sojourn_store_misses_total", "host"] == 1
    assert samples["sojourn_store_used_bytes", "disk"] == 10
    assert samples["sojourn_store_budget_bytes", "disk"] == 200
    assert samples["sojourn_store_copied_bytes_total", "remote", "disk"] == 10
    assert samples["sojourn_store_copy_seconds_total", "disk", "host"] == 0.5
    assert all(name.startswith("sojourn_store_") for name, *_ in samples)
