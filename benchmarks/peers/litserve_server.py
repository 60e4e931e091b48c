"""Serve a model with LitServe: ``python -m benchmarks.peers.litserve_server MODEL PORT``."""

import sys
from typing import Any

import litserve

from benchmarks.peers.models import HOSTED, MAX_BATCH_SIZE, stack, unstack


class Inference(litserve.LitAPI):  # type: ignore[misc]
    """The model, in LitServe's one inference process."""

    def setup(self, device: str) -> None:
        """Load the model."""
        self.model = HOSTED[sys.argv[1]].load()

    def batch(self, inputs: list[Any]) -> Any:
        """Stack parsed JSON requests into one batch."""
        return stack(self.model, inputs)

    def predict(self, x: Any) -> Any:
        """Answer the batch."""
        return self.model.forward(x)

    def unbatch(self, output: Any) -> list[Any]:
        """Split the batch of answers."""
        return unstack(output)


if __name__ == "__main__":
    api = Inference(
        max_batch_size=MAX_BATCH_SIZE, batch_timeout=1e-3 * HOSTED[sys.argv[1]].max_wait_ms
    )
    # LitServe's documentation recommends the fast queue above 100 requests per second.
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1, fast_queue=True)
    server.run(
        host="127.0.0.1",
        port=int(sys.argv[2]),
        num_api_servers=1,
        log_level="warning",
        access_log=False,
        generate_client_file=False,
    )
