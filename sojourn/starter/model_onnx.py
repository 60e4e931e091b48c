"""Your graph of ONNX: inputs and outputs follow from the file; your code goes around it."""

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from sojourn import TensorSpec
from sojourn.models import OnnxModel


class Classifier(OnnxModel):
    """The graph in model.onnx, which multiplies `features` by a matrix; put yours in its place."""

    def __init__(self, path: str = "model.onnx") -> None:
        super().__init__(path)

    def load(self, device: str) -> None:
        """Load the graph on `device`, ``cpu`` or ``cuda``, and add an output to its own."""
        super().load(device)
        self.outputs = (TensorSpec("label", "INT64"), *self.outputs)

    def forward(self, batch: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Compute a batch; row i of each output answers row i of the inputs."""
        found = super().forward(batch)
        return {"label": found["scores"].argmax(axis=1), **found}
