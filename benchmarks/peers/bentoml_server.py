"""Serve a model with BentoML: ``python -m benchmarks.peers.bentoml_server MODEL PORT``."""

import os
import sys
from typing import Any

import bentoml

from benchmarks.peers.models import HOSTED, MAX_BATCH_SIZE, MODEL_VARIABLE, stack, unstack


@bentoml.service(
    workers=1,
    traffic={"timeout": 60},
    logging={"access": {"enabled": False}},
    metrics={"enabled": False},
)
class Inference:
    """The model behind BentoML's adaptive batching."""

    def __init__(self) -> None:
        self._model = HOSTED[os.environ[MODEL_VARIABLE]].load()

    @bentoml.api(  # type: ignore[untyped-decorator]
        batchable=True, max_batch_size=MAX_BATCH_SIZE, max_latency_ms=60_000
    )
    def predict(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Answer a batch of parsed JSON requests."""
        return unstack(self._model.forward(stack(self._model, rows)))


if __name__ == "__main__":
    os.environ[MODEL_VARIABLE] = sys.argv[1]
    service = "benchmarks.peers.bentoml_server:Inference"
    command = [sys.executable, "-m", "bentoml", "serve", service]
    options = ["--host", "127.0.0.1", "--port", sys.argv[2], "--api-workers", "1"]
    os.execv(sys.executable, [*command, *options])
