"""The JSON that each server takes and answers, and workloads whose answers are checked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from benchmarks.peers.models import HOSTED
from deployments.models.base import Model
from loadtests.answers import TOLERANCE

Row = Mapping[str, NDArray[Any]]


class OpenInference:
    """The Open Inference Protocol: Sojourn."""

    def path(self, model: str) -> str:
        return f"/v2/models/{model}/infer"

    def encode(self, model: Model, row: Row) -> bytes:
        """Encode the body of a request for one item."""
        tensors = [
            {
                "name": spec.name,
                "datatype": spec.datatype,
                "shape": [1, *spec.shape],
                "data": row[spec.name].ravel(),
            }
            for spec in model.inputs
        ]
        return orjson.dumps({"inputs": tensors}, option=orjson.OPT_SERIALIZE_NUMPY)

    def decode(self, body: bytes) -> Mapping[str, Any]:
        return {entry["name"]: entry["data"] for entry in orjson.loads(body)["outputs"]}


@dataclass(frozen=True)
class Objects:
    """An object of inputs, answered by an object of outputs: Ray Serve, Mosec."""

    at: str

    def path(self, model: str) -> str:
        return self.at

    def encode(self, model: Model, row: Row) -> bytes:
        """Encode the body of a request for one item."""
        inputs = {spec.name: row[spec.name] for spec in model.inputs}
        return orjson.dumps(inputs, option=orjson.OPT_SERIALIZE_NUMPY)

    def decode(self, body: bytes) -> Mapping[str, Any]:
        content: dict[str, Any] = orjson.loads(body)
        return content


Dialect = OpenInference | Objects


class Workload:
    """Requests to a model in one dialect, one for each row, and the model's own answers."""

    def __init__(self, name: str, dialect: Dialect, rows: Row) -> None:
        model = HOSTED[name].load()
        size = len(next(iter(rows.values())))
        one_by_one = [{key: array[i : i + 1] for key, array in rows.items()} for i in range(size)]
        self.path = dialect.path(name)
        self.rows = rows
        self.bodies = [
            dialect.encode(model, {key: array[0] for key, array in row.items()})
            for row in one_by_one
        ]
        if name == "emulated":
            # The device echoes its input; running it would take its emulated time.
            self._answers: Sequence[Row] = [{"output": row["input"]} for row in one_by_one]
        else:
            self._answers = [dict(model.forward(row)) for row in one_by_one]
        self._dialect = dialect

    def is_right(self, number: int, body: bytes) -> bool:
        try:
            content = self._dialect.decode(body)
            return all(
                np.size(content[name]) == values.size
                and np.allclose(np.ravel(content[name]), values.ravel(), rtol=0, atol=TOLERANCE)
                for name, values in self._answers[number].items()
            )
        except (ValueError, KeyError, TypeError):
            return False


def example_rows(name: str, count: int) -> dict[str, NDArray[Any]]:
    """Return `count` inputs for a model: held-out digits or generated numbers."""
    if name == "digits":
        from loadtests.digits import held_out  # scikit-learn takes seconds to import

        return {"image": np.array(held_out()[0][:count])}
    if name == "emulated":
        # Quarters are exact in 32 bits, so the echo is, too.
        return {"input": np.arange(count, dtype=np.float32)[:, np.newaxis] / 4}
    (spec,) = HOSTED[name].load().inputs
    values = np.random.default_rng(2).uniform(-1, 1, (count, *spec.shape)).round(4)
    return {spec.name: values.astype(np.float32)}
