import numpy as np
import pytest

from deployments.errors import StartError
from deployments.models.base import Model, TensorSpec
from deployments.serving.warm_up import warm_up

LATENCY_MS = [float(10 * size) for size in range(1, 13)]


class Timed(Model):
    inputs = outputs = (TensorSpec("x", "FP32"),)

    def __init__(self, first_s=0.0, compile_s=0.0, slower=1.0):
        self.now_s = 0.0
        self.sizes: list[int] = []
        self._first_s, self._compile_s, self._slower = first_s, compile_s, slower

    def load(self, device): ...

    def forward(self, batch):
        size = len(batch["x"])
        if not self.sizes:
            self.now_s += self._first_s
        if size not in self.sizes:
            self.now_s += self._compile_s
        self.now_s += self._slower * 1e-3 * LATENCY_MS[size - 1]
        self.sizes.append(size)
        return {"x": np.zeros(size)}


class Waits(Timed):
    waits = True


def warmed(model: Timed, budget_s=60.0):
    return warm_up(model, LATENCY_MS, budget_s, lambda: model.now_s)


@pytest.mark.parametrize(
    ("model", "sizes"),
    [
        (Timed(first_s=20.0), [1, 12, 2, 4, 8]),
        (Timed(slower=10.0), [1, 12, 12, 2, 2, 4, 4, 8, 8]),
        (Waits(), [1, 12]),  # for another machine
    ],
)
def test_a_model_that_does_not_compile_runs_powers_of_two_and_the_largest_size(model, sizes):
    assert warmed(model) == set()
    assert model.sizes == sizes


def test_a_model_that_compiles_for_each_size_runs_all_of_them():
    model = Timed(compile_s=2.0)
    assert warmed(model) == set()
    assert set(model.sizes) == set(range(1, 13))
    assert model.sizes.count(12) == 2, "the second batch tells a compile from a slow device"


def test_sizes_that_there_was_no_time_for_are_named():
    model = Timed(compile_s=10.0)
    assert warmed(model, budget_s=45.0) == set(range(1, 13)) - set(model.sizes)
    assert {1, 12, 2, 4, 8} <= set(model.sizes)
    assert 45.0 < model.now_s < 60.0


def test_outputs_are_checked_at_every_size_that_is_run():
    class WrongFrom8(Timed):
        def forward(self, batch):
            outputs = super().forward(batch)
            return outputs if len(batch["x"]) != 8 else {"y": outputs["x"]}

    with pytest.raises(StartError, match=r"batch of 8: .*'x' is missing"):
        warmed(WrongFrom8())
