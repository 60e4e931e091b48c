"""Only the first replica measures its profile."""

import numpy as np
import pytest

from deployments.config.replica_args import ModelConfig
from deployments.models.loading import load_model
from deployments.profiling.profile_cache import ProfileCache
from deployments.serving.service_loading import profile_of
from policy.profile import Profile

CONFIG = ModelConfig(name="emulated", import_path="digits", max_batch_size=4)


class Shelf:
    def __init__(self, content=None):
        self.content = content
        self.kept = ProfileCache(lambda: self.content, self.put)

    def put(self, content):
        self.content = content


@pytest.fixture
def measured(monkeypatch):
    """Count measurements instead of doing any."""
    calls = []

    def measure(model, **options):
        calls.append(options)
        return Profile("digits", "cpu", np.array([1.0, 1.5, 2.0, 2.5]))

    monkeypatch.setattr("deployments.serving.service_loading.measure_profile", measure)
    return calls


def test_the_second_replica_uses_what_the_first_one_measured(measured):
    shelf, model = Shelf(), load_model("digits", {}, "cpu")
    first = profile_of(CONFIG, model, "cpu", 2.0, shelf.kept)
    second = profile_of(CONFIG, model, "cpu", 2.0, shelf.kept)
    assert len(measured) == 1
    assert second.to_dict() == first.to_dict()
    assert second.cpus == 2.0


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"latency_ms": [-1]}'])
def test_one_that_cannot_be_read_is_measured_again(measured, content):
    shelf, model = Shelf(content), load_model("digits", {}, "cpu")
    profile_of(CONFIG, model, "cpu", kept=shelf.kept)
    assert len(measured) == 1
    assert shelf.kept.load().latency_ms.tolist() == [1.0, 1.5, 2.0, 2.5]
