"""Serve a model with Mosec: ``python -m benchmarks.peers.mosec_server MODEL PORT REPLICAS``."""

import os
import sys
from typing import Any

from mosec import Server, Worker

from benchmarks.peers.models import HOSTED, MAX_BATCH_SIZE, MODEL_VARIABLE, stack, unstack


class Inference(Worker):  # type: ignore[misc]
    """A process with the model; Mosec's HTTP server is written in Rust."""

    def __init__(self) -> None:
        super().__init__()
        self._model = HOSTED[os.environ[MODEL_VARIABLE]].load()

    def forward(self, data: list[Any]) -> list[Any]:
        """Answer a batch of parsed JSON requests."""
        return unstack(self._model.forward(stack(self._model, data)))


if __name__ == "__main__":
    name, port, replicas = sys.argv[1:]
    # Mosec parses sys.argv itself. Its timeout is long because the client decides when to give up.
    sys.argv[1:] = ["--address", "127.0.0.1", "--port", port, "--timeout", "30000"]
    sys.argv += ["--log-level", "error"]
    server = Server()
    server.append_worker(
        Inference,
        num=int(replicas),
        max_batch_size=MAX_BATCH_SIZE,
        max_wait_time=HOSTED[name].max_wait_ms,
        env=[{MODEL_VARIABLE: name}] * int(replicas),
    )
    server.run()
