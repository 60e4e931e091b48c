"""Experiments one after the other, of which some fail."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from benchmarks.resilience import experiments
from benchmarks.resilience.__main__ import main, run_all
from benchmarks.resilience.experiments import Experiment
from benchmarks.resilience.load import Load, Target
from benchmarks.resilience.report import BEGIN, END, markdown
from benchmarks.resilience.run import Run
from benchmarks.resilience.service import Document, Service

LOAD = Load(rate_per_s=50, idle_clients=0, timeout_s=0.2)


def nothing(run: Run) -> None:
    """Do nothing."""
    time.sleep(0.1)


def breaks(run: Run) -> None:
    """Fail."""
    raise KeyError("replicas")


def hangs(run: Run) -> None:
    """Never return."""
    time.sleep(60)


@pytest.mark.slow
def test_an_experiment_that_fails_or_hangs_keeps_no_other_from_being_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiments, "BEFORE_S", 0.1)
    ended = []

    @contextmanager
    def nobody(document: Document) -> Iterator[Service]:
        """Yield a service whose port refuses all."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        target = Target("127.0.0.1", port, "m", 0.5, 99)
        yield Service(target, "", psutil.Process(), document)
        ended.append(document["of"])

    @contextmanager
    def does_not_start(document: Document) -> Iterator[Service]:
        raise SystemExit("no memory")
        yield

    chosen = [
        Experiment("starts", nothing, lambda: {"of": 1}, start=does_not_start, load=LOAD),
        Experiment("breaks", breaks, lambda: {"of": 2}, start=nobody, load=LOAD),
        Experiment("hangs", hangs, lambda: {"of": 3}, start=nobody, load=LOAD),
        Experiment("runs", nothing, lambda: {"of": 4}, start=nobody, load=LOAD),
    ]
    page = tmp_path / "page.md"
    page.write_text(BEGIN + END)
    rows = run_all(chosen, quick=True, folder=tmp_path, limit_s=3, page=page)
    assert page.read_text() == f"{BEGIN}\n{markdown(rows)}\n{END}"
    assert [row["notes"] for row in rows] == [
        ["not completed: no memory"],
        ["not completed: 'replicas'"],
        ["not completed: it took more than 3 s"],
        [],
    ]
    assert [row["sent"] is None for row in rows] == [True, True, True, False]
    assert rows[3]["lost"] == rows[3]["sent"] > 0
    assert ended == [2, 3, 4]
    assert json.loads((tmp_path / "resilience.json").read_text())["experiments"] == rows


def test_without_ray_only_experiments_that_send_requests_are_run() -> None:
    result = CliRunner().invoke(main, ["--list", "--without-ray"])
    assert result.exit_code == 0, result.output
    assert "slow-bodies" in result.output
    assert "fuzz" in result.output
    assert "killed" not in result.output


def test_nothing_is_run_for_a_page_without_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("no table\n")
    result = CliRunner().invoke(main, ["--page", str(page)])
    assert result.exit_code == 1
    assert "has no lines" in result.output
    assert page.read_text() == "no table\n"
