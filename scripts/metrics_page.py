#!/usr/bin/env python3
"""Print docs/metrics.md: every metric, from where it is defined."""

from collections.abc import Iterable

from prometheus_client.parser import text_string_to_metric_families

from autoscaler.metrics import DECISION_INSTRUMENTS, Instrument
from deployments.modelstore.core.store_core import StoreCore
from deployments.modelstore.manager.prometheus import exposition
from deployments.observability.replica_instruments import REPLICA_INSTRUMENTS
from deployments.pipelines.serving.metrics import PIPELINE_INSTRUMENTS

HEAD = """\
# Metrics

Written by `scripts/metrics_page.py > docs/metrics.md`; a test compares them.

Ray exports the metrics of replicas and of the autoscaler on every node, with the prefix `ray_`:
`sojourn_late_rows_total` is `ray_sojourn_late_rows_total` in Prometheus. `sojourn serve` prints
the address to scrape; on a cluster, Ray writes the addresses of all nodes to
`/tmp/ray/prom_metrics_service_discovery.json`, which Prometheus reads with `file_sd_configs`. Ray
adds labels of its own, `application`, `deployment` and `replica` among them. Each replica of a
[pipeline](pipelines.md), with Ray or without, has a `/metrics` of its own. `sojourn store stats
--prometheus` prints those of the [model store](model_store.md) on its node
([how to scrape them](operations.md#prometheus)).

Requests have rows, and what is queued, batched and counted is rows. Refused rows are offered
again at another replica, so a client's request may be several offered rows of the fleet. The
autoscaler's `sojourn_autoscaler_offered_requests_per_second` counts each only once.

Ray passes histograms on by the midpoints of their buckets (`open_telemetry_metric_recorder.py`),
so quantiles are right within a bucket, `_count` is exact below 200 values a second and replica,
and `_sum` is only approximate. Divide counters for a mean: the mean batch is
`sum(rate(ray_sojourn_completed_rows_total[5m])) / sum(rate(ray_sojourn_batches_total[5m]))`, its
mean time `rate(ray_sojourn_device_busy_seconds_total[5m])` over the same.
"""


def table(instruments: Iterable[Instrument]) -> str:
    lines = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for given in instruments:
        labels = ", ".join(f"`{label}`" for label in given.labels)
        lines.append(f"| `{given.name}` | {given.kind} | {labels} | {given.description} |")
    return "\n".join(lines)


def store_table() -> str:
    """Return a Markdown table of the metrics of the model store's manager."""
    lines = ["| metric | kind | meaning |", "|---|---|---|"]
    for family in text_string_to_metric_families(exposition(StoreCore({}).stats())):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        lines.append(f"| `{name}` | {family.type} | {family.documentation} |")
    return "\n".join(lines)


def main() -> None:
    print(HEAD)
    print(f"## A replica\n\n{table(REPLICA_INSTRUMENTS)}\n")
    print(f"## The autoscaler\n\n{table(DECISION_INSTRUMENTS.values())}\n")
    print(f"## A pipeline\n\n{table(PIPELINE_INSTRUMENTS)}\n")
    print(f"## The model store\n\nOf a node's manager; most by tier.\n\n{store_table()}")


if __name__ == "__main__":
    main()
