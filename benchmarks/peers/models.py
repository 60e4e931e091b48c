"""The models that every server of the comparison hosts.

Each server imports this module in its own virtual environment, so it needs only numpy and torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from deployments.models.base import Model, TensorSpec
from deployments.models.emulated import Emulated
from deployments.models.loading import load_model

MAX_BATCH_SIZE = 32
FEATURES, HIDDEN, CLASSES = 256, 512, 16
#: A batch of b requests takes 50 ms + 0.5 ms·b.
DEVICE_PROFILE = {
    "model": "emulated",
    "device": "emulated",
    "max_batch_size": MAX_BATCH_SIZE,
    "latency_ms": {"per_request": 0.5, "fixed": 50.0},
}
#: Of every SLA of the comparison.
PERCENTILE = 99.0
#: Names the model for servers whose worker processes get no arguments.
MODEL_VARIABLE = "SOJOURN_BENCHMARK_MODEL"


class TinyMLP(Model):
    """A 256 → 512 → 16 perceptron with fixed random weights, so cheap that the server dominates."""

    inputs = (TensorSpec("x", "FP32", (FEATURES,)),)
    outputs = (TensorSpec("y", "FP32", (CLASSES,)),)

    def load(self, device: str) -> None:
        """Draw the weights, the same in every process."""
        torch.set_num_threads(1)
        random = np.random.default_rng(1)

        def linear(inputs: int, outputs: int) -> torch.nn.Linear:
            layer = torch.nn.Linear(inputs, outputs)
            weights = random.normal(0, inputs**-0.5, (outputs, inputs)).astype(np.float32)
            layer.weight.data = torch.from_numpy(weights)
            layer.bias.data = torch.zeros(outputs)
            return layer

        self._network = torch.nn.Sequential(
            linear(FEATURES, HIDDEN), torch.nn.ReLU(), linear(HIDDEN, CLASSES)
        ).eval()

    def forward(self, batch: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        # torch wants writable arrays; np.require copies only those that are read-only.
        x = np.require(batch["x"], np.float32, ["C", "W"])
        with torch.inference_mode():
            return {"y": self._network(torch.from_numpy(x)).numpy()}


class Device(Emulated):
    def __init__(self) -> None:
        super().__init__(DEVICE_PROFILE)


@dataclass(frozen=True)
class Hosted:
    """A model to host.

    `max_wait_ms` is for a peer that needs a timeout for a batch to fill. It is short compared with
    a batch: while the device is busy, requests accumulate anyway.
    """

    name: str
    import_path: str
    max_wait_ms: int
    response_time_ms: float

    def load(self) -> Model:
        return load_model(self.import_path, {}, "cpu")


HOSTED = {
    hosted.name: hosted
    for hosted in (
        Hosted("mlp", "benchmarks.peers.models:TinyMLP", 1, 20.0),
        Hosted("digits", "deployments.models.digits:Digits", 1, 20.0),
        # The shortest batch takes 50.5 ms, a full one 66.
        Hosted("emulated", "benchmarks.peers.models:Device", 5, 150.0),
    )
}


def stack(model: Model, rows: Sequence[Mapping[str, Any]]) -> dict[str, NDArray[Any]]:
    """Stack requests, each a JSON object of the model's inputs for one item, into a batch."""
    return {
        spec.name: np.array([row[spec.name] for row in rows], spec.numpy_dtype)
        for spec in model.inputs
    }


def unstack(outputs: Mapping[str, NDArray[Any]]) -> list[dict[str, Any]]:
    """Split a batch of answers into JSON objects of the model's outputs, one per item."""
    columns = {name: array.tolist() for name, array in outputs.items()}
    size = len(next(iter(columns.values())))
    return [{name: column[i] for name, column in columns.items()} for i in range(size)]


def user_config(name: str) -> dict[str, Any]:
    """Return how a model is batched.

    The emulated device aims at its SLA. The other models are measured for throughput, so they
    answer at once and refuse nobody.
    """
    sla = {"response_time_ms": HOSTED[name].response_time_ms, "percentile": PERCENTILE}
    if name == "emulated":
        return {"sla": sla}
    return {"sla": sla, "policy": {"objective": "weights"}, "limits": {"late": "serve"}}


def model_section(name: str) -> dict[str, Any]:
    hosted = HOSTED[name]
    return {
        "name": name,
        "import_path": hosted.import_path,
        "device": "cpu",
        "max_batch_size": MAX_BATCH_SIZE,
    }
