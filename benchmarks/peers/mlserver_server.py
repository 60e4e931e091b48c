"""Serve a model with MLServer: ``python -m benchmarks.peers.mlserver_server MODEL PORT``."""

import asyncio
import logging
import sys
from typing import Any

from mlserver import MLModel, MLServer, ModelSettings, Settings
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse

from benchmarks.peers.models import HOSTED, MAX_BATCH_SIZE


class Inference(MLModel):  # type: ignore[misc]
    """The model behind MLServer's adaptive batching."""

    async def load(self) -> bool:
        """Load the model."""
        self._model = HOSTED[self.name].load()
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Answer a batch that MLServer made."""
        inputs: dict[str, Any] = {
            entry.name: NumpyCodec.decode_input(entry) for entry in payload.inputs
        }
        outputs = self._model.forward(inputs)
        return InferenceResponse(
            model_name=self.name,
            outputs=[
                NumpyCodec.encode_output(name, array.reshape(len(array), -1))
                for name, array in outputs.items()
            ],
        )


async def main() -> None:
    """Serve until told to stop."""
    logging.disable(logging.INFO)
    hosted, port = HOSTED[sys.argv[1]], int(sys.argv[2])
    settings = Settings(
        debug=False,
        host="127.0.0.1",
        http_port=port,
        grpc_port=port + 1,
        metrics_endpoint=None,
        # Run the model in the server's own process: a pool of one worker only adds a copy.
        parallel_workers=0,
        gzip_enabled=False,
    )
    model_settings = ModelSettings(
        name=hosted.name,
        implementation=Inference,
        max_batch_size=MAX_BATCH_SIZE,
        max_batch_time=1e-3 * hosted.max_wait_ms,
    )
    await MLServer(settings).start([model_settings])


if __name__ == "__main__":
    asyncio.run(main())
