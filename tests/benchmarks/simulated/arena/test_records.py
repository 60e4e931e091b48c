from pathlib import Path

from benchmarks.simulated.arena.records import Records
from simulator.arena import Outcome


def test_outcomes_are_kept_across_runs(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    outcomes = {
        ("a", "peak"): Outcome("peak", "Peak", "10-", 0.9, 12.0, None, 3.0),
        ("b", "peak"): Outcome("peak", "Peak", "111", 1.0, 15.0, 2.5, 0.0),
    }
    for key, outcome in outcomes.items():
        Records(path)[key] = outcome
    assert dict(Records(path)) == outcomes
    with path.open("a") as file:
        file.write('{"load": "c", "na')  # killed while it wrote
    records = Records(path)
    assert dict(records) == outcomes
    records["c", "peak"] = outcomes["a", "peak"]
    assert len(Records(path)) == 3
    assert dict(Records(None)) == {}
