import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.observability.inference_statistics import BatchTotals, RequestTotals

TIMES_S = st.floats(0, 10)


@settings(max_examples=30)
@given(
    answered=st.lists(st.tuples(st.integers(1, 9), TIMES_S), max_size=20),
    failed=st.lists(TIMES_S, max_size=20),
    batches=st.lists(st.tuples(st.integers(1, 8), TIMES_S), max_size=20),
)
def test_what_is_told_adds_up(answered, failed, batches):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: 100.0)
        requests, computed = RequestTotals(), BatchTotals()
        for rows, time_s in answered:
            requests.answered(rows, 100 - time_s)
        for time_s in failed:
            requests.failed(100 - time_s)
        for size, time_s in batches:
            computed.add(size, time_s)
        told = requests.describe("m", "1", computed)
        last_ms = told["last_inference"]
        assert last_ms == (pytest.approx(1e3 * time.time(), abs=1e5) if answered else 0)
    assert told["inference_count"] == sum(rows for rows, _ in answered)
    assert told["execution_count"] == len(batches)
    of = told["inference_stats"]
    assert of["success"]["count"] == len(answered)
    assert of["success"]["ns"] == pytest.approx(1e9 * sum(t for _, t in answered), abs=2)
    assert of["fail"] == {"count": len(failed), "ns": pytest.approx(1e9 * sum(failed), abs=2)}
    assert of["queue"]["ns"] + of["compute_infer"]["ns"] == of["success"]["ns"]
    assert of["queue"]["ns"] >= 0
    # perf_analyzer gives up unless these counts are equal.
    for times in (of, *told["batch_stats"]):
        steps = [times[name]["count"] for name in ("compute_input", "compute_output")]
        assert steps == [times["compute_infer"]["count"]] * 2
    by_size = {entry["batch_size"]: entry["compute_infer"] for entry in told["batch_stats"]}
    assert sum(part["count"] for part in by_size.values()) == len(batches)
    for size, part in by_size.items():
        expected_s = sum(time_s for other, time_s in batches if other == size)
        assert part["ns"] == pytest.approx(1e9 * expected_s, abs=len(batches))


def test_every_request_of_a_batch_was_computed_for_all_of_its_time():
    requests, batches = RequestTotals(), BatchTotals()
    now_s = time.monotonic()
    for _ in range(4):
        requests.answered(1, now_s - 1.0)
    batches.add(4, 0.25)
    told = requests.describe("m", "1", batches)["inference_stats"]
    assert told["compute_infer"] == {"count": 4, "ns": 1_000_000_000}
