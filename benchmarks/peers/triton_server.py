"""Serve a model with Triton through PyTriton.

``python -m benchmarks.peers.triton_server MODEL PORT``
"""

import logging
import sys
from typing import Any

from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

from benchmarks.peers.models import HOSTED, MAX_BATCH_SIZE


def main() -> None:
    """Serve until told to stop."""
    logging.disable(logging.INFO)
    hosted, port = HOSTED[sys.argv[1]], int(sys.argv[2])
    model = hosted.load()

    @batch  # type: ignore[untyped-decorator]
    def infer(**inputs: Any) -> Any:
        outputs = model.forward(inputs)
        # Triton has no scalars per item: they become tensors of one element.
        return {
            spec.name: outputs[spec.name].reshape(-1, *(spec.shape or (1,)))
            for spec in model.outputs
        }

    def tensors(specs: Any) -> list[Any]:
        return [
            Tensor(name=spec.name, dtype=spec.numpy_dtype.type, shape=spec.shape or (1,))
            for spec in specs
        ]

    config = TritonConfig(
        http_address="127.0.0.1",
        http_port=port,
        grpc_address="127.0.0.1",
        grpc_port=port + 1,
        allow_metrics=False,
        # More HTTP threads would only compete with the model for the cores.
        http_thread_count=2,
    )
    # Its documentation advises a queue delay only if batches stay small; here they do not.
    batcher = DynamicBatcher(max_queue_delay_microseconds=0)
    with Triton(config=config) as triton:
        triton.bind(
            model_name=hosted.name,
            infer_func=infer,
            inputs=tensors(model.inputs),
            outputs=tensors(model.outputs),
            config=ModelConfig(batching=True, max_batch_size=MAX_BATCH_SIZE, batcher=batcher),
            strict=False,
        )
        triton.serve()


if __name__ == "__main__":
    main()
