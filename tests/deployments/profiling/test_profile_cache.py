import numpy as np
import pytest

from deployments.config.replica_args import ModelConfig
from deployments.models.loading import load_model
from deployments.profiling.profile_cache import ProfileCache
from deployments.serving.service_loading import profile_of
from policy.profile import Profile

CONFIG = ModelConfig(name="emulated", import_path="digits", max_batch_size=4)


class Shelf(ProfileCache):
    def __init__(self, *kept):
        self.kept = list(kept)
        super().__init__(lambda: self.kept[-1] if self.kept else None, self.kept.append)


@pytest.fixture
def measured(monkeypatch):
    """The measurements that were asked for; none is done."""
    calls = []

    def measure(model, **options):
        calls.append(options)
        return Profile("digits", "cpu", np.array([1.0, 1.5, 2.0, 2.5]))

    monkeypatch.setattr("deployments.serving.service_loading.measure_profile", measure)
    return calls


def test_the_second_replica_uses_what_the_first_one_measured(measured):
    shelf, model = Shelf(), load_model("digits", {}, "cpu")
    first, second = (profile_of(CONFIG, model, "cpu", 2.0, shelf) for _ in range(2))
    assert len(measured) == 1
    assert second.to_dict() == first.to_dict()
    assert second.cpus == 2.0


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"latency_ms": [-1]}'])
def test_one_that_cannot_be_read_is_measured_again(measured, content):
    shelf = Shelf(content)
    profile_of(CONFIG, load_model("digits", {}, "cpu"), "cpu", kept=shelf)
    assert len(measured) == 1
    assert shelf.load().latency_ms.tolist() == [1.0, 1.5, 2.0, 2.5]
