import time

import numpy as np
import pytest

from deployments.models.base import Model, TensorSpec
from deployments.serving.event_loop_costs import measure_event_loop, runs_on_the_cpu
from policy.profile import Profile


class Doubles(Model):
    inputs = (TensorSpec("x", "FP32", (2,)),)
    outputs = (TensorSpec("y", "FP32", (2,)),)

    def load(self, device): ...

    def forward(self, batch):
        return {"y": 2 * batch["x"]}


class Sleeps(Doubles):
    def forward(self, batch):
        time.sleep(0.002)
        return super().forward(batch)


class Computes(Doubles):
    def forward(self, batch):
        until_s = time.process_time() + 0.002
        while time.process_time() < until_s:
            pass
        return super().forward(batch)


def test_a_device_that_leaves_the_processor_alone_is_known_by_its_cpu_time():
    assert runs_on_the_cpu(Computes(), 1)
    assert not runs_on_the_cpu(Sleeps(), 1)


@pytest.mark.slow
def test_a_real_loop_is_measured():
    """Any machine reads and answers a request in 5 µs to 5 ms of CPU time."""
    costs = measure_event_loop(Doubles(), Profile("m", "d", np.full(16, 1.0)), shares_cpu=False)
    assert 0.005 < costs.request_ms < 5
    assert 0 <= costs.batch_ms < 5
    assert np.isfinite(costs.ms_per_request(4))
