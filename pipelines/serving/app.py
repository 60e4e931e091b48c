"""The HTTP interface of a pipeline: that of a model, and what concerns the stages."""

import orjson
from starlette.types import Message, Receive, Scope, Send

from deployments.http.app import InferenceApp
from pipelines.serving.metrics import metrics_text
from pipelines.serving.service import PipelineService, StageTimes, stage_times

#: A request with this header gets the times of the stages in the parameters of its JSON answer.
STAGE_TIMES = b"x-sojourn-stage-times"
_PATH, _METRICS = "/sojourn/pipeline", "/metrics"


class PipelineApp(InferenceApp):
    """ASGI app for a `PipelineService`.

    Parameters
    ----------
    service : PipelineService
    server_version : str
        The version that ``GET /v2`` reports.
    """

    unusual_fields = frozenset({STAGE_TIMES})

    def __init__(self, service: PipelineService, server_version: str) -> None:
        super().__init__(service, server_version)
        self._pipeline_service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request, or the server's lifespan events."""
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        path = scope["path"].removeprefix(scope.get("root_path", "")).rstrip("/")
        reads = scope["method"] in ("GET", "HEAD")
        service = self._pipeline_service
        if path == _PATH and reads:
            content = orjson.dumps(service.describe(), option=orjson.OPT_SERIALIZE_NUMPY)
            await _send(scope, send, content, b"application/json")
        elif path == _METRICS and reads:
            text = metrics_text(service.model_name, service.pipeline.core)
            await _send(scope, send, text, b"text/plain; version=0.0.4; charset=utf-8")
        elif any(name == STAGE_TIMES for name, _ in scope["headers"]):
            times: StageTimes = []
            token = stage_times.set(times)
            try:
                await super().__call__(scope, receive, _add_times(send, times))
            finally:
                stage_times.reset(token)
        else:
            await super().__call__(scope, receive, send)


async def _send(scope: Scope, send: Send, body: bytes, content_type: bytes) -> None:
    headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


def _add_times(send: Send, times: StageTimes) -> Send:
    """Return a `send` that adds the times of the stages to a successful JSON answer."""
    start: list[Message] = []

    async def send_with_times(message: Message) -> None:
        if message["type"] == "http.response.start":
            start.append(message)
            return
        head, body = start.pop(), message["body"]
        is_json = dict(head["headers"]).get(b"content-type") == b"application/json"
        if head["status"] == 200 and is_json:
            content = orjson.loads(body)
            content["parameters"] = {"stages": times}
            body = orjson.dumps(content)
            headers = [field for field in head["headers"] if field[0] != b"content-length"]
            head = {**head, "headers": [*headers, (b"content-length", b"%d" % len(body))]}
        await send(head)
        await send({**message, "body": body})

    return send_with_times
