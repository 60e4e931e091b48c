"""What tokens, request ids, the log and traces cost a replica's event loop, per request.

    python -m benchmarks.live.access_cost [--quick] [--json]

Each operation of the request path is called on its own, in turns with the others, so that what
else the machine does hits all alike. What is measured is the CPU time of this thread. The last
column compares it with parsing and encoding a request of one row of the digits model (64 numbers),
which every request needs. Spans are made by OpenTelemetry's SDK and go to an exporter that drops
them; sending them is the work of another thread.
"""

import json
import logging
import time
from collections.abc import Callable
from typing import Any

import click
import numpy as np
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from benchmarks.arguments import json_option, quick_option
from deployments.access.config import AccessConfig
from deployments.access.control import INFERENCE, AccessControl
from deployments.access.tokens import hash_token, make_token
from deployments.errors import RequestError
from deployments.http.inference_protocol import parse_request
from deployments.http.request_head import END_OF_HEAD, RequestHeads
from deployments.http.response_encoding import encode_response
from deployments.http.signature import Signature
from deployments.models.base import TensorSpec
from deployments.observability.config import TracingConfig
from deployments.observability.request_ids import RequestIds
from deployments.observability.request_info import RequestInfo
from deployments.observability.request_log import RequestLog, logger
from deployments.observability.tracing import BatchTimes, Tracing
from sojourn.output import print_json, print_table

PARSE = "parse and encode one row"
TOKENS = 100
SIGNATURE = Signature((TensorSpec("x", "FP32", (64,)),), (TensorSpec("y", "FP32", (10,)),), 256)

Operation = Callable[[], object]


class _Drop(SpanExporter):
    """An exporter that exports nothing."""

    def export(self, spans: Any) -> SpanExportResult:
        return SpanExportResult.SUCCESS


def _provider(config: TracingConfig, model: str) -> TracerProvider:
    provider = TracerProvider(sampler=ALWAYS_ON, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(_Drop()))
    return provider


def _parse_and_encode() -> Operation:
    values = np.random.default_rng(1).random(64).round(4).tolist()
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 64], "data": values}
    body = json.dumps({"inputs": [tensor]}).encode()
    outputs = {"y": np.zeros((1, 10), np.float32)}

    def run() -> object:
        return encode_response("m", "1", parse_request(body, None, SIGNATURE), outputs)

    return run


def _find(*lines: str) -> Operation:
    start = ["POST /v2/models/m/infer HTTP/1.1", "host: 127.0.0.1:8000", "content-length: 120"]
    head = "\r\n".join([*start, "x-forwarded-for: 127.0.0.1", *lines]).encode() + END_OF_HEAD
    heads, end = RequestHeads(b"/v2/models/m/infer"), head.index(END_OF_HEAD)
    return lambda: heads.find(head, end)


def _admit(number: int, known: bool = True, **more: Any) -> Operation:
    secrets = [make_token() for _ in range(number)]
    tokens = [
        {"name": f"t{place}", "hash": hash_token(secret), **more}
        for place, secret in enumerate(secrets)
    ]
    control = AccessControl(
        AccessConfig.model_validate({"tokens": tokens} if tokens else {}),
    )
    sent = (secrets[-1] if known and secrets else make_token()).encode()

    def run() -> object:
        try:
            return control.admit(b"Bearer " + sent, INFERENCE, time.monotonic())
        except RequestError as error:
            return error

    return run


def _log(*, left_out: bool) -> Operation:
    times = iter(range(1 << 62))
    # Each line is due if a minute has passed since the last one.
    log = RequestLog(
        "m", (lambda: 0.0) if left_out else (lambda: 60.0 * next(times)), lambda delay, call: None
    )
    return lambda: log.failed(503, "this replica is full", b"9f86d081884c7d65-2a", 0.0)


def _trace(ratio: float) -> Operation:
    tracing = Tracing("m", "1", _provider)
    tracing.configure(TracingConfig(sample_ratio=ratio, max_per_s=1e12))
    now_s = time.monotonic()
    batch = BatchTimes(now_s, now_s + 0.01, 0.01, 8, "limit", False)

    def run() -> None:
        trace = tracing.begin(None, b"9f86d081884c7d65-2a", now_s)
        if trace is not None:
            trace.batches.append(batch)
            tracing.end(trace, 200, 1)

    return run


def operations() -> dict[str, Operation]:
    """Return what is measured, by name."""
    return {
        "nothing": lambda: None,
        PARSE: _parse_and_encode(),
        "find the head": _find("x-request-id: 9f86d081-8844-4c7d-a55a-d015a3bf4f1b"),
        "find the head, with traceparent": _find(
            "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "x-request-id: 9f86d081-8844-4c7d-a55a-d015a3bf4f1b",
        ),
        "make an id": RequestIds().make,
        "note id and trace": lambda: RequestInfo(b"a", None),
        "admit, everything open": _admit(0),
        "admit one token": _admit(1),
        f"admit one of {TOKENS} tokens": _admit(TOKENS),
        "admit a limited token": _admit(1, requests_per_s=1e12),
        "deny an unknown token": _admit(1, known=False),
        "log line left out": _log(left_out=True),
        "log line written": _log(left_out=False),
        "tracing on, not sampled": _trace(0.0),
        "four spans of a traced request": _trace(1.0),
    }


def measure(calls: int, repeats: int) -> dict[str, float]:
    """Return the lowest CPU time per call of all repetitions, in µs, by operation."""
    lowest: dict[str, float] = {}
    for _ in range(repeats):
        for name, operation in operations().items():
            operation()
            started_s = time.thread_time()
            for _ in range(calls):
                operation()
            spent_us = 1e6 * (time.thread_time() - started_s) / calls
            lowest[name] = min(spent_us, lowest.get(name, spent_us))
    loop_us = lowest.pop("nothing")
    return {name: max(0.0, spent_us - loop_us) for name, spent_us in lowest.items()}


@click.command()
@quick_option("Fewer calls; takes about 2 seconds.")
@json_option
def main(quick: bool, as_json: bool) -> None:
    """Measure what access, ids, the log and traces cost the event loop per request."""
    # Lines are made as in a replica, and dropped where its log would be written.
    logger.setLevel(logging.INFO)
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    calls, repeats = (1000, 5) if quick else (5000, 15)
    costs = measure(calls, repeats)
    results: list[dict[str, Any]] = [
        {"operation": name, "cpu_us": cost, "of_parsing": cost / costs[PARSE]}
        for name, cost in costs.items()
    ]
    if as_json:
        print_json({"calls": calls, "repeats": repeats, "results": results})
        return
    print_table(
        ["operation", "CPU (µs)", "of parsing and encoding (%)"],
        [
            [row["operation"], f"{row['cpu_us']:.2f}", f"{100 * row['of_parsing']:.0f}"]
            for row in results
        ],
    )


if __name__ == "__main__":
    main()
