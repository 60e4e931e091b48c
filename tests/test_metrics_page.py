import re
import subprocess
import sys

import pytest

from autoscaler.metrics import DECISION_INSTRUMENTS
from deployments.observability.replica_instruments import REPLICA_INSTRUMENTS
from deployments.pipelines.serving.metrics import PIPELINE_INSTRUMENTS
from tests.support.readme import ROOT

INSTRUMENTS = [*REPLICA_INSTRUMENTS, *DECISION_INSTRUMENTS.values(), *PIPELINE_INSTRUMENTS]


@pytest.mark.slow
def test_the_page_is_up_to_date():
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


def test_a_metric_is_named_by_the_conventions():
    names = [given.name for given in INSTRUMENTS]
    assert len(names) == len(set(names))
    for given in INSTRUMENTS:
        assert re.fullmatch(r"sojourn(_[a-z]+)+", given.name)
        assert given.name.endswith("_total") == (given.kind == "counter"), given.name
        assert bool(given.buckets) == (given.kind == "histogram"), given.name
        # Base units: not ms, mJ or percent.
        assert not re.search(r"_(ms|milliseconds|mj|percent)(_|$)", given.name)


def test_the_metrics_named_on_the_page_about_operations_exist():
    named = set(re.findall(r"\bray_sojourn_\w+", (ROOT / "docs/operations.md").read_text()))
    known = {f"ray_{given.name}" for given in INSTRUMENTS}
    assert len(named) > 7
    assert {re.sub("_(bucket|count)$", "", name) for name in named} <= known
