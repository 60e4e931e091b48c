"""For how long a large request keeps a replica's event loop from all others.

    python -m benchmarks.live.large_bodies [--quick] [--json]

Bodies of 0.1 to 4 MB hold a tensor as a flat JSON list, as nested lists, or as raw bytes (the
binary tensor extension). Each is parsed at once, which is how long the loop stands, and in turns as
the service does it: the longest turn is how long the loop stands then, and all turns together are
what it costs. What is measured is the CPU time of this thread.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import click
import numpy as np
import orjson

from benchmarks.arguments import json_option, quick_option
from deployments.http.app import takes_turns
from deployments.http.inference_protocol import InferenceRequest, parse_in_turns, parse_request
from deployments.http.signature import Signature
from deployments.http.turns import Turns
from deployments.models.base import TensorSpec
from sojourn.output import print_json, print_table

FORMS = ("flat", "nested", "bytes", "binary")
#: What the values of each form are: numbers as a float32 prints, or pixels from 0 to 255.
FORM_NAMES = {
    "flat": "JSON, float32",
    "nested": "JSON, float32, nested",
    "bytes": "JSON, pixels",
    "binary": "binary, float32",
}
SIDE = 224


def make_body(form: str, size_bytes: int) -> tuple[bytes, int | None, Signature]:
    """Return a body of about `size_bytes`, the length of its JSON part, and its signature."""
    draw = np.random.default_rng(1)
    value_bytes = {"flat": 11.9, "nested": 11.9, "bytes": 3.6, "binary": 4.0}[form]
    lines = max(1, round(size_bytes / value_bytes / SIDE))
    x = draw.random((1, lines, SIDE)).astype(np.float32)
    if form == "bytes":
        x = np.floor(256 * x)
    entry: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": list(x.shape)}
    signature = Signature((TensorSpec("x", "FP32", x.shape[1:]),), (), 1)
    if form == "binary":
        entry["parameters"] = {"binary_data_size": x.nbytes}
        header = orjson.dumps({"inputs": [entry]})
        return header + x.tobytes(), len(header), signature
    data = x.astype(int) if form == "bytes" else x
    entry["data"] = data if form == "nested" else data.ravel()
    return orjson.dumps({"inputs": [entry]}, option=orjson.OPT_SERIALIZE_NUMPY), None, signature


def in_turns_ms(body: bytes, signature: Signature) -> list[float]:
    """Return the CPU time of each turn in which a body is parsed."""
    ready: deque[Callable[[], None]] = deque()
    found: list[Any] = []
    times_ms = []
    Turns(ready.append).start(parse_in_turns(body, None, signature), found.append)
    while ready:
        started_s = time.thread_time()
        ready.popleft()()
        times_ms.append(1e3 * (time.thread_time() - started_s))
    if not isinstance(found[0], InferenceRequest):
        raise found[0]
    return times_ms


def measure(form: str, size_bytes: int, repeats: int) -> dict[str, Any]:
    """Return the lowest of several measurements of a body."""
    body, header_length, signature = make_body(form, size_bytes)
    whole_ms, longest_ms, total_ms = [], [], []
    for _ in range(repeats):
        started_s = time.thread_time()
        parse_request(body, header_length, signature)
        whole_ms.append(1e3 * (time.thread_time() - started_s))
        turns_ms = whole_ms[-1:]
        if takes_turns(body, header_length):
            turns_ms = in_turns_ms(body, signature)
        longest_ms.append(max(turns_ms))
        total_ms.append(sum(turns_ms))
    return {
        "form": form,
        "body_bytes": len(body),
        "at_once_ms": min(whole_ms),
        "longest_turn_ms": min(longest_ms),
        "turns_ms": min(total_ms),
    }


@click.command()
@quick_option("Fewer repetitions; takes about 3 seconds.")
@json_option
def main(quick: bool, as_json: bool) -> None:
    """Measure how long parsing large bodies keeps the event loop from everything else."""
    sizes_mb = (0.1, 0.6, 1.5, 4.0)
    results = [
        measure(form, round(1e6 * size_mb), 3 if quick else 15)
        for form in FORMS
        for size_mb in sizes_mb
    ]
    if as_json:
        print_json({"results": results})
        return
    print_table(
        ["tensor", "body (MB)", "at once (ms)", "longest turn (ms)", "all turns (ms)"],
        [
            [
                FORM_NAMES[row["form"]],
                f"{row['body_bytes'] / 1e6:.1f}",
                *(f"{row[key]:.2f}" for key in ("at_once_ms", "longest_turn_ms", "turns_ms")),
            ]
            for row in results
        ],
    )


if __name__ == "__main__":
    main()
