"""Ray Serve as its documentation shows it: `@serve.batch` around the model.

The peer of `benchmarks/data_path.py`, run in a process of its own: `python -m
benchmarks.plain_serve PORT MAX_ONGOING_REQUESTS` serves until its standard input closes. 5 is how
Serve comes; more lets a batch fill.
"""

import sys
from typing import Any

import numpy as np
import ray
from ray import serve
from starlette.requests import Request

from deployments.models.digits import Digits


@serve.deployment
class PlainDigits:
    """The digits model behind Ray Serve's own batching."""

    def __init__(self) -> None:
        self._model = Digits()
        self._model.load("cpu")

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0.01)  # type: ignore[untyped-decorator]
    async def _infer(self, images: list[Any]) -> list[dict[str, Any]]:
        outputs = self._model.forward({"image": np.array(images, np.float32).reshape(-1, 8, 8)})
        rows = zip(outputs["label"], outputs["probabilities"], strict=True)
        return [{"label": [int(label)], "probabilities": p.tolist()} for label, p in rows]

    async def __call__(self, request: Request) -> dict[str, Any]:
        """Answer one request of one image."""
        content = await request.json()
        answer: dict[str, Any] = await self._infer(content["inputs"][0]["data"])
        return answer


def main() -> None:
    """Serve on the port given until standard input closes."""
    ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
    deployment = PlainDigits.options(  # type: ignore[attr-defined]
        max_ongoing_requests=int(sys.argv[2])
    )
    serve.run(deployment.bind(), route_prefix="/")
    print("ready", flush=True)
    sys.stdin.read()
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
