"""What the console costs a replica's event loop: one event a second, while a page is open.

    python -m benchmarks.live.console_cost [--json]

A real service on an emulated device has run batches of several sizes, and the log of decisions is
full. What is measured is the CPU time of the event loop's thread for putting together one event,
and for sending it to each of the open pages. Streams share what was put together, so an event is
made once a second however many pages are open.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import click
import numpy as np

from autoscaler.decision import Decision
from autoscaler.decision_log import DECISIONS_KEPT
from benchmarks.arguments import json_option
from deployments.config import ModelConfig, parse_user_config
from deployments.console.feed import PERIOD_S, Feed
from deployments.http.datatypes import codec_of
from deployments.http.inference_protocol import InferenceRequest
from deployments.http.signature import RequestedOutput
from deployments.models.emulated import Emulated
from deployments.service import InferenceService
from policy.profile import Profile
from sojourn.output import print_json, print_table

PROFILE = Profile.from_dict(
    {
        "max_batch_size": 32,
        "latency_ms": {"per_request": 0.02, "fixed": 0.3},
        "energy_mj": {"per_request": 20, "fixed": 20},
    }
)
ROUNDS = 200
_REASON = "scale out 2 -> 3; offered 356.9/s, demand 490.3/s by last at a risk of 0.01"


async def _service() -> InferenceService:
    """Return a service that has run batches."""
    config = ModelConfig(name="m", import_path="emulated", max_batch_size=32)
    service = InferenceService(config, Emulated(PROFILE.to_dict()), PROFILE)
    await service.configure(parse_user_config({"sla": {"response_time_ms": 1000}}))
    (output,) = Emulated.outputs
    for rows in range(1, 33):
        inputs = {"input": np.ones((rows, 1), np.float32)}
        request = InferenceRequest(inputs, rows, (RequestedOutput(codec_of(output), False),), None)
        arrival_s = time.monotonic()
        await service.infer(request, arrival_s)
        service.count_answered(rows, arrival_s)
    return service


async def _measure(rounds: int) -> dict[str, float]:
    service = await _service()
    decisions: list[dict[str, Any]] = []

    async def autoscaler() -> Mapping[str, Any]:
        return {"newest": decisions[-1], "decisions": decisions}

    times_s = {"changed": np.inf, "same": np.inf}
    sizes = dict.fromkeys(times_s, 0.0)
    now_s = 0.0
    feed = Feed(lambda: [service.explain()], autoscaler, "replica", lambda: now_s)
    try:
        for number in range(rounds):
            decision = asdict(Decision(3, _REASON))
            entry = {"time_s": float(number), "target_replicas": 2, **decision}
            decisions[:] = [entry] * DECISIONS_KEPT
            sent = 0
            for kind in times_s:
                now_s += PERIOD_S
                began_s = time.thread_time()
                event, sent = await feed.next(sent)
                times_s[kind] = min(times_s[kind], time.thread_time() - began_s)
                sizes[kind] = len(event)
    finally:
        await service.close()
    return {
        "event_us": 1e6 * times_s["same"],
        "event_bytes": sizes["same"],
        "event_with_log_us": 1e6 * times_s["changed"],
        "event_with_log_bytes": sizes["changed"],
        "core_share": times_s["same"] / PERIOD_S,
    }


@click.command()
@json_option
def main(as_json: bool) -> None:
    """Measure the CPU time of an event of the console."""
    found = asyncio.run(_measure(ROUNDS))
    if as_json:
        print_json(found)
        return
    print_table(
        ("event", "CPU (µs)", "kB", "of a core"),
        [
            ("state", found["event_us"], found["event_bytes"] / 1e3, f"{found['core_share']:.3%}"),
            (
                "state and log of decisions",
                found["event_with_log_us"],
                found["event_with_log_bytes"] / 1e3,
                "when it changes",
            ),
        ],
    )


if __name__ == "__main__":
    main()
