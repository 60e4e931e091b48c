"""Load for an hour or more, strangers every few minutes, and the memory of each process.

    python -m benchmarks.resilience.soak [--minutes 60] [--json]

The service and the bystanders are those of `benchmarks.resilience`. Strangers misbehave in turn for
15 s of every three minutes. Memory is the proportional set size, which counts a shared page once.
Each kind of stranger leaves buffers behind that the next of its kind uses again, so growth counts
from the end of the first round of all strangers.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import click
import numpy as np
import psutil

from benchmarks.arguments import json_option, print_result
from benchmarks.resilience import strangers
from benchmarks.resilience.load import Bystanders, Load
from benchmarks.resilience.run import Run
from benchmarks.resilience.service import Service, emulated_document, serving
from benchmarks.resilience.tally import tally
from sojourn.output import say

STRANGERS = (
    strangers.garbage,
    strangers.slow_bodies,
    strangers.churn,
    strangers.slow_headers,
    strangers.overload,
    strangers.idle_connections,
)
STRANGERS_EVERY_S, SAMPLE_EVERY_S = 180.0, 20.0
ROUND_S = STRANGERS_EVERY_S * len(STRANGERS)


def memory_mib(service: Service) -> dict[str, float]:
    """Return the memory of each process, by role and process id."""
    roles: dict[int, str] = {}
    for process in service.process.children(recursive=True):
        with suppress(psutil.Error):
            # `ray::Class`, or a program of its own with many arguments; an ended process has none.
            command = process.cmdline() or [process.name()]
            roles[process.pid] = command[0].rpartition("/")[2].split(" ")[0]
    for role, processes in (
        ("replica", service.replicas()),
        ("HAProxy", service.haproxies()),
        ("supervisor of HAProxy", service.supervisors()),
        ("solver", service.solvers()),
        ("sojourn serve", [service.process]),
    ):
        roles |= dict.fromkeys((process.pid for process in processes), role)
    found = {}
    for pid, role in roles.items():
        with suppress(psutil.Error):
            found[f"{role} {pid}"] = psutil.Process(pid).memory_full_info().pss / 2**20
    return found


def sampled(service: Service, until_s: float) -> Iterator[tuple[float, dict[str, float]]]:
    """Look at the memory again and again, while strangers misbehave in turn."""
    begun_s = next_strangers_s = time.monotonic()
    turn = 0
    while (now_s := time.monotonic()) < until_s:
        if now_s >= next_strangers_s:
            next_strangers_s += STRANGERS_EVERY_S
            run = Run(service)
            STRANGERS[turn % len(STRANGERS)](run)
            turn += 1
            for note in run.notes:
                say(f"{(now_s - begun_s) / 60:.0f} min: {note}")
        yield now_s - begun_s, memory_mib(service)
        time.sleep(SAMPLE_EVERY_S)


def growth(samples: list[tuple[float, dict[str, float]]]) -> list[dict[str, Any]]:
    """Return a row for each process that ran from the end of the first round to the last sample."""
    settled = [one for one in samples if one[0] >= ROUND_S]
    hours = np.array([at_s for at_s, _ in settled]) / 3600
    lasting = set.intersection(*(set(memory) for _, memory in settled))
    rows = []
    for name in sorted(lasting):
        mib = np.array([memory[name] for _, memory in settled])
        rounds = np.searchsorted(hours, np.arange(ROUND_S, samples[-1][0], ROUND_S) / 3600)
        rows.append(
            {
                "process": name,
                "mib_at_the_start": samples[0][1].get(name),
                "mib_after_each_round": list(mib[rounds]),
                "mib_at_the_end": mib[-1],
                "growth_mib_per_hour": np.polyfit(hours, mib, 1)[0],
            }
        )
    return rows


@click.command(help=__doc__.splitlines()[0])
@click.option(
    "--minutes", default=60.0, show_default=True, type=click.FloatRange(min=2 * ROUND_S / 60)
)
@json_option
def main(minutes: float, as_json: bool) -> None:
    """Run the soak and print what the clients saw and how the memory grew."""
    with serving(emulated_document()) as service:
        bystanders = Bystanders(service.target, Load())
        bystanders.start()
        begun_s = time.monotonic()
        try:
            samples = list(sampled(service, begun_s + 60 * minutes))
        finally:
            bystanders.end()
        for one in bystanders.lost:
            say(f"lost: {one}")
        target = service.target
        counts = tally(
            bystanders.requests, bystanders.doubled, begun_s, target.sla_s, target.percentile
        )
        print_result({**asdict(counts), "memory": growth(samples)}, as_json)


if __name__ == "__main__":
    main()
