"""How device time is accounted for under overload."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers.goodput import in_time
from benchmarks.peers.open_loop import Run
from benchmarks.peers.overload import _device_time
from loadtests.records import Outcome, Records


def test_device_time_is_split_among_requests_and_wasted_time_is_reported(tmp_path: Path) -> None:
    records = Records.begin(np.zeros(4))
    records.outcome[:] = [Outcome.OK, Outcome.OK, Outcome.TIMEOUT, Outcome.TIMEOUT]
    records.finished_s[:] = [0.10, 0.30, 0.01, 0.09]
    run = Run(100.0, records, [b""] * 4)
    batches = [
        {"started_s": 99.0, "ended_s": 99.9, "values": [1]},  # before the run, so not counted
        {"started_s": 100.05, "ended_s": 100.09, "values": [1, 2, 3, 4]},
        {"started_s": 100.1, "ended_s": 100.14, "values": [2]},
    ]
    log = tmp_path / "batches"
    log.write_text("".join(json.dumps(batch) + "\n" for batch in batches))
    wasted, gone = _device_time(run, in_time(run), log)
    # 80 ms in total: 10 ms for the answer in time, 10 ms for the client that had left before.
    assert (wasted, gone) == (pytest.approx(70 / 80), pytest.approx(10 / 80))
