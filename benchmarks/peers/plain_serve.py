"""Serve a model with Ray Serve as its documentation shows it: `@serve.batch` around the model.

``python -m benchmarks.peers.plain_serve MODEL PORT`` serves until its standard input closes.
"""

import sys
from typing import Any

import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse

from benchmarks.peers.models import HOSTED, MAX_BATCH_SIZE, stack, unstack


# Ray Serve's default of 5 ongoing requests would keep batches from filling.
@serve.deployment(max_ongoing_requests=256)
class Plain:
    """A model behind Ray Serve's own batching."""

    def __init__(self, name: str) -> None:
        self._model = HOSTED[name].load()

    @serve.batch(  # type: ignore[untyped-decorator]
        max_batch_size=MAX_BATCH_SIZE, batch_wait_timeout_s=0.01
    )
    async def _infer(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return unstack(self._model.forward(stack(self._model, rows)))

    async def __call__(self, request: Request) -> JSONResponse:
        """Answer one request of one item."""
        # A dict would be sent in chunks, which the open-loop client does not read.
        return JSONResponse(await self._infer(await request.json()))


def main() -> None:
    """Serve on the port given until standard input closes."""
    name, port = sys.argv[1], int(sys.argv[2])
    ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(Plain.bind(name), route_prefix="/")  # type: ignore[attr-defined]
    print("ready", flush=True)
    sys.stdin.read()
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
