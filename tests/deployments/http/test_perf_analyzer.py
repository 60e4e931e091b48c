"""Triton's perf_analyzer, unmodified, against the app on a real socket."""

import asyncio
import csv
import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest

from deployments.http.app import InferenceApp
from deployments.http.protocol import HostedApp, InferenceProtocol
from tests.support.models.doubles_service import Doubles, listening, make_service

PERF_ANALYZER = shutil.which("perf_analyzer")
ROWS = [[0.5, 1.0], [-2.0, 3.0], [1e6, 0.0]]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PERF_ANALYZER is None, reason="needs perf_analyzer (docs/load_tests.md)"),
]


async def analyze(
    tmp_path: Path, rows: list[list[float]], *options: str, factor: int = 2
) -> tuple[str, list[dict[str, str]], dict[str, Any]]:
    """Run perf_analyzer; return its output, its table and the statistics.

    It compares each answer with the one expected, the input times `factor`.
    """
    expected = [[factor * x for x in row] for row in rows]
    data = {
        "data": [{"x": {"content": row, "shape": [2]}} for row in rows],
        "validation_data": [{"y": {"content": row, "shape": [2]}} for row in expected],
    }
    given, table = tmp_path / "data.json", tmp_path / "table.csv"
    given.write_text(json.dumps(data))
    async with make_service(Doubles()) as service:
        app = InferenceApp(service, "1")

        class Protocol(InferenceProtocol):
            hosted = HostedApp(app, asyncio.get_running_loop())

        async with listening(app, Protocol) as (_, port):
            assert PERF_ANALYZER is not None
            # Three windows of any stability, however slow: this is no measurement.
            process = await asyncio.create_subprocess_exec(
                *(PERF_ANALYZER, "-m", "doubles", "-u", f"localhost:{port}"),
                *("--measurement-mode", "count_windows", "--measurement-request-count", "20"),
                *("-s", "999", "--shared-memory", "none"),
                *("--input-data", str(given), "-f", str(table), *options),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            printed = (await process.communicate())[0].decode()
            assert process.returncode == 0, printed
            async with httpx.AsyncClient(base_url=f"http://localhost:{port}") as client:
                answer = (await client.get("/v2/models/doubles/stats")).json()
    with table.open() as lines:
        return printed, list(csv.DictReader(lines)), answer["model_stats"][0]


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--async",),
        ("--input-tensor-format=json", "--output-tensor-format=json"),
    ],
    ids=["binary", "asynchronous", "json"],
)
async def test_it_measures_and_finds_every_answer_right(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    printed, table, statistics = await analyze(
        tmp_path, ROWS, "--concurrency-range", "1:4:3", *options
    )
    assert {line["Concurrency"] for line in table} == {"1", "4"}
    assert all(float(line["Inferences/Second"]) > 0 for line in table)
    assert "Successful request count" in printed
    times = statistics["inference_stats"]
    assert times["fail"]["count"] == 0
    assert times["success"]["count"] == times["compute_input"]["count"] > 0


@pytest.mark.parametrize(
    ("rows", "factor", "message"),
    [
        ([[1.0, 2.0]], 3, "Output doesn't match expected output"),
        ([[13.0, 0.0]], 2, "the model failed on this request"),
    ],
)
async def test_it_finds_what_is_wrong(
    tmp_path: Path, rows: list[list[float]], factor: int, message: str
) -> None:
    """So the other tests can fail."""
    with pytest.raises(AssertionError, match=message):
        await analyze(tmp_path, rows, "--concurrency-range", "1", factor=factor)
