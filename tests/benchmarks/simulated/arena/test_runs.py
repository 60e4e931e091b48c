"""The records of the comparison of autoscalers."""

from pathlib import Path

from benchmarks.simulated.arena.runs import Records


def test_records_are_kept_across_runs(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    Records(path).add({"key": "a", "value": 1})
    again = Records(path)
    again.add({"key": "b", "value": 2})
    assert Records(path).by_key == {"a": {"key": "a", "value": 1}, "b": {"key": "b", "value": 2}}
