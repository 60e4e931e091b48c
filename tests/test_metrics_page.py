"""The page about metrics is what the definitions say, and these follow Prometheus's conventions."""

import re
import subprocess
import sys

import pytest

from autoscaler.metrics import DECISION_INSTRUMENTS, Instrument
from deployments.observability.replica_instruments import REPLICA_INSTRUMENTS
from deployments.pipelines.serving.metrics import PIPELINE_INSTRUMENTS
from tests.support.readme import ROOT

ALL = [*REPLICA_INSTRUMENTS, *DECISION_INSTRUMENTS.values(), *PIPELINE_INSTRUMENTS]
#: Base units, and what is counted; `sojourn_bottleneck` and replicas are bare numbers.
UNITS = (
    "seconds|joules|bytes|ratio|rows|items|requests|batches|answers|errors|refits|failures|"
    "replicas|workers"
)
BARE = {
    "sojourn_bottleneck",
    "sojourn_config_rejected",
    "sojourn_pipeline_config_rejected",
    "sojourn_standby",
    "sojourn_autoscaler_standbys_decided",
    "sojourn_autoscaler_replicas_decided",
    "sojourn_autoscaler_replicas_required",
}


@pytest.mark.slow
def test_the_page_is_up_to_date() -> None:
    printed = subprocess.run(
        [sys.executable, "scripts/metrics_page.py"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    page = (ROOT / "docs/metrics.md").read_text()
    assert page == printed, "run: python scripts/metrics_page.py > docs/metrics.md"


def test_no_name_is_used_twice() -> None:
    names = [given.name for given in ALL]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("given", ALL, ids=lambda given: given.name)
def test_a_metric_is_named_and_described_by_the_conventions(given: Instrument) -> None:
    assert re.fullmatch(r"sojourn(_[a-z]+)+", given.name)
    assert given.name.endswith("_total") == (given.kind == "counter")
    assert bool(given.buckets) == (given.kind == "histogram")
    base = given.name.removesuffix("_total")
    assert given.name in BARE or re.search(f"_({UNITS})(_per_second)?$", base)
    assert given.description[0].isupper() or given.description[0].isdigit()
    assert given.description.endswith((".", "0"))
