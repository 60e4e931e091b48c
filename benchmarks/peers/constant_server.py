"""Serve an echo whose every answer takes the same time, with uvicorn and nothing else.

``python -m benchmarks.peers.constant_server MODEL PORT SERVICE_MS``. Requests do not wait for each
other, so that the right distribution of the response time is known: all take `SERVICE_MS`.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson
import uvicorn
import uvloop

Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]


class Echo:
    """An ASGI app that speaks as much of the Open Inference Protocol as clients need.

    Parameters
    ----------
    model : str
    service_s : float
        From a request's last byte to its answer.
    """

    def __init__(self, model: str, service_s: float) -> None:
        self._service_s = service_s
        tensor = {"datatype": "FP32", "shape": [-1, 1]}
        self._metadata = {
            "name": model,
            "inputs": [{"name": "input", **tensor}],
            "outputs": [{"name": "output", **tensor}],
        }

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        started_s = asyncio.get_running_loop().time()
        body = b""
        while (message := await receive()).get("more_body"):
            body += message["body"]
        body += message.get("body", b"")
        content: Any = self._metadata
        if scope["method"] == "POST":
            (tensor,) = orjson.loads(body)["inputs"]
            content = {"outputs": [{**tensor, "name": "output"}]}
            spent_s = asyncio.get_running_loop().time() - started_s
            await asyncio.sleep(max(0.0, self._service_s - spent_s))
        answer = orjson.dumps(content)
        length = str(len(answer)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


def main() -> None:
    """Serve until told to stop."""
    model, port, service_ms = sys.argv[1:]
    config = uvicorn.Config(
        Echo(model, float(service_ms) / 1000),
        host="127.0.0.1",
        port=int(port),
        lifespan="off",
        log_level="error",
        access_log=False,
    )
    uvloop.run(uvicorn.Server(config).serve())


if __name__ == "__main__":
    main()
