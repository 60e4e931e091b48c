"""Measure what the garbage collector costs a replica that starts: with it, and without.

    python -m benchmarks.live.start_imports [--quick] [--json]

Each run is a process of its own, which imports Ray Serve and the replica, as Ray's worker has, and
then the digits and torch, loads the model, and hides it from the collector. ``load_ms`` is the
processor time until the model is loaded, ``collect_ms`` that of the last collection;
``garbage`` is how many objects it freed. `kept` is how replicas start
(`deployments.kept_imports`), `collected` how they would without that.
"""

import json
import statistics
import subprocess
import sys
from typing import Any

import click

from benchmarks.arguments import json_option, quick_option
from sojourn.output import print_json, print_table

_REPLICA = """
import contextlib, gc, json, sys, time
import ray.serve, deployments.replica
from deployments.config import ModelConfig
from deployments.kept_imports import kept_imports
from deployments.models.loading import find_model_class
from deployments.service_loading import load_service
profile = {"max_batch_size": 32, "latency_ms": {"per_request": 0.05, "fixed": 0.3}}
begin_s = time.thread_time()
with kept_imports() if sys.argv[1] == "kept" else contextlib.nullcontext():
    find_model_class("digits")
service = load_service(ModelConfig(name="digits", import_path="digits", profile=profile), 1.0)
loaded_s = time.thread_time()
garbage = gc.collect()
gc.freeze()
end_s = time.thread_time()
print(json.dumps([1e3 * (loaded_s - begin_s), 1e3 * (end_s - loaded_s), garbage]))
"""


def measure(kind: str, repeats: int) -> dict[str, float]:
    """Return the medians of some starts."""
    rows = []
    for _ in range(repeats):
        command = [sys.executable, "-W", "ignore", "-c", _REPLICA, kind]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
    names = ("load_ms", "collect_ms", "garbage")
    return {name: statistics.median(row[place] for row in rows) for place, name in enumerate(names)}


@click.command()
@quick_option("Start each kind once.")
@json_option
def main(quick: bool, as_json: bool) -> None:
    """Measure what the garbage collector costs a replica that starts."""
    results: dict[str, Any] = {
        kind: measure(kind, 1 if quick else 5) for kind in ("collected", "kept")
    }
    if as_json:
        print_json(results)
        return
    columns = tuple(results["kept"])
    print_table(
        ("start", *columns),
        [(kind, *(row[column] for column in columns)) for kind, row in results.items()],
    )


if __name__ == "__main__":
    main()
