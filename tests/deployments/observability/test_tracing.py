import gzip
import queue
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from deployments.config.user_config import TracingConfig, parse_user_config
from deployments.http.app import InferenceApp
from deployments.http.hosted_app import HostedApp
from deployments.http.protocol import InferenceProtocol
from deployments.observability.request_info import RequestInfo
from deployments.observability.tracing import BatchTimes, RequestTrace, Tracing
from policy.errors import InvalidInputError
from tests.support.models.doubles_service import USER_CONFIG, body, listening, make_service
from tests.support.waiting import LIMIT_S

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, NOT_SAMPLED = (f"00-{TRACE}-{SPAN}-{flags}".encode() for flags in ("01", "00"))


def tracing_of(config: TracingConfig):
    exporter = InMemorySpanExporter()

    def provider(_: TracingConfig, model):
        made = TracerProvider(shutdown_on_exit=False)
        made.add_span_processor(SimpleSpanProcessor(exporter))
        return made

    tracing = Tracing("doubles", "1", provider)
    tracing.configure(config)
    return tracing, exporter


def begun(tracing: Tracing, traceparent, number, now_s=0.0):
    info = RequestInfo(b"id", traceparent)
    return sum(tracing.begin(info, now_s, 1) is not None for _ in range(number))


@pytest.mark.parametrize("ratio", [0.0, 0.3, 1.0])
def test_requests_without_a_trace_are_sampled(ratio):
    tracing, _ = tracing_of(TracingConfig(sample_percent=100 * ratio, expert={"max_per_s": 1e9}))
    # 2,000 draws: the standard deviation of their share is 1%.
    assert begun(tracing, None, 2000) / 2000 == pytest.approx(ratio, abs=0.06)
    assert begun(tracing, SAMPLED, 100) == 100
    assert begun(tracing, NOT_SAMPLED, 100) == 0


def test_an_invalid_traceparent_counts_as_none():
    never, _ = tracing_of(TracingConfig(sample_percent=0))
    always, _ = tracing_of(TracingConfig(sample_percent=100, expert={"max_per_s": 1e9}))
    no_trace, no_span = f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01"
    wrong = [b"", b"01", SAMPLED + b"-x", b"ff" + SAMPLED[2:], SAMPLED.upper()]
    for value in (*wrong, no_trace.encode(), no_span.encode()):
        assert never.begin(RequestInfo(b"id", value), 0.0, 1) is None
        trace = always.begin(RequestInfo(b"id", value), 0.0, 1)
        assert trace.traceparent is None


def test_clients_cannot_ask_for_more_traces_than_allowed():
    tracing, _ = tracing_of(TracingConfig(sample_percent=0, expert={"max_per_s": 5.0}))
    assert begun(tracing, SAMPLED, 100, 0.0) == 5
    assert begun(tracing, SAMPLED, 100, 1.0) == 5


def by_name(spans):
    named: dict[str, list[ReadableSpan]] = {}
    for span in sorted(spans, key=lambda span: (span.start_time, span.end_time)):
        named.setdefault(span.name, []).append(span)
    return named


def milliseconds(spans, origin):
    return [
        [round(1e-6 * (at - origin.start_time), 3) for at in (span.start_time, span.end_time)]
        for span in spans
    ]


def test_a_request_in_two_batches_has_the_times_of_both():
    tracing, exporter = tracing_of(TracingConfig())
    arrival_s = time.monotonic() - 1
    trace = RequestTrace(tracing, arrival_s, 6, SAMPLED)
    for start_s, end_s, device_s in ((0.1, 0.3, 0.15), (0.35, 0.5, 9.0)):
        trace.batches.append(
            BatchTimes(arrival_s + start_s, arrival_s + end_s, device_s, 4, "full", False)
        )
    RequestInfo(b"id-7", token="alice", trace=trace).end_trace(200)
    spans = by_name(exporter.get_finished_spans())
    (root,) = spans["infer"]
    assert milliseconds(spans["queue"], root) == [[0, 100], [300, 350]]
    assert milliseconds(spans["batch"], root) == [[100, 300], [350, 500]]
    # The device's time is within the batch's, whatever its thread's clock says.
    assert milliseconds(spans["device"], root) == [[100, 250], [350, 500]]
    assert milliseconds([root], root)[0][1] >= 1000
    assert abs(1e-9 * root.end_time - time.time()) < 5
    assert root.kind is SpanKind.SERVER
    assert (f"{root.parent.trace_id:x}".zfill(32), f"{root.parent.span_id:x}") == (TRACE, SPAN)
    assert root.attributes == {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "sojourn.model": "doubles",
        "sojourn.rows": 6,
        "sojourn.request_id": "id-7",
        "sojourn.token": "alice",
    }
    assert spans["batch"][0].attributes["sojourn.batch.size"] == 4
    inside = {span.parent.span_id for span in (*spans["queue"], *spans["batch"])}
    assert inside == {root.context.span_id}
    assert [span.parent.span_id for span in spans["device"]] == [
        span.context.span_id for span in spans["batch"]
    ]


@pytest.mark.parametrize("http", [HttpToolsProtocol, InferenceProtocol], ids=["asgi", "short way"])
async def test_requests_over_http_are_traced(http, monkeypatch):
    tracing, exporter = tracing_of(TracingConfig(sample_percent=0))
    config = parse_user_config({**USER_CONFIG, "tracing": {"sample_percent": 0}})
    requests = (([(1, 2), (3, 4)], SAMPLED), ([(13, 13)], SAMPLED), ([(1, 2)], NOT_SAMPLED))
    async with make_service() as service:
        service.tracing = tracing
        await service.configure(config)
        app = InferenceApp(service, "1")
        hosted = HostedApp(app)
        monkeypatch.setattr(InferenceProtocol, "hosted", hosted)
        async with (
            listening(app, http) as (_, port),
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
        ):
            url = "/v2/models/doubles/infer"
            answers = [
                await client.post(url, json=body(*rows), headers={"traceparent": parent.decode()})
                for rows, parent in requests
            ]
    spans = by_name(exporter.get_finished_spans())
    roots = spans["infer"]
    assert [answer.status_code for answer in answers] == [200, 500, 200]
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert [root.attributes["sojourn.request_id"] for root in roots] == ids[:2]
    assert [root.attributes["http.response.status_code"] for root in roots] == [200, 500]
    assert [root.status.is_ok for root in roots] == [True, False]
    good = [span for span in spans["batch"] if not span.attributes["sojourn.batch.failed"]]
    assert [span.attributes["sojourn.batch.size"] for span in good] == [2]
    assert len(spans["device"]) == len(spans["batch"])


def test_another_configuration_replaces_the_exporter_and_none_ends_it():
    tracing, exporter = tracing_of(TracingConfig())
    tracing.configure(TracingConfig())
    trace = RequestTrace(tracing, time.monotonic(), 1, None)
    RequestInfo(b"a", trace=trace).end_trace(200)
    assert len(exporter.get_finished_spans()) == 1
    tracing.configure(None)
    assert not tracing.on
    assert begun(tracing, SAMPLED, 1) == 0
    RequestInfo(b"b", trace=trace).end_trace(200)
    assert len(exporter.get_finished_spans()) == 1


def test_the_exporter_reaches_a_collector():
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    received: queue.Queue[tuple[str, bytes]] = queue.Queue()

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            content = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers["Content-Encoding"] == "gzip":
                content = gzip.decompress(content)
            received.put((self.path, content))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_): ...

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        endpoint = f"http://127.0.0.1:{server.server_port}/v1/traces"
        tracing = Tracing("digits", "1")
        tracing.configure(TracingConfig(sample_percent=100, endpoint=endpoint))
        info = RequestInfo(b"id-7", SAMPLED)
        info.trace = tracing.begin(info, time.monotonic(), 1)
        info.end_trace(503)
        tracing.close()  # sends what is left
        path, content = received.get(timeout=LIMIT_S)
        server.shutdown()
        thread.join()
    assert path == "/v1/traces"
    (resource,) = ExportTraceServiceRequest.FromString(content).resource_spans
    attributes = {entry.key: entry.value.string_value for entry in resource.resource.attributes}
    assert attributes["service.name"] == "digits"
    spans = {span.name: span for scope in resource.scope_spans for span in scope.spans}
    assert set(spans) == {"infer", "queue"}
    assert spans["infer"].trace_id.hex() == TRACE
    assert spans["infer"].parent_span_id.hex() == SPAN


def test_without_its_packages_tracing_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    tracing = Tracing("m", "1")
    with pytest.raises(InvalidInputError, match=r"pip install 'sojourn\[tracing\]'"):
        tracing.configure(TracingConfig())
    assert not tracing.on
