import orjson
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.decision import DECISIONS_KEPT, RECORD_AGAIN_AFTER_S, Decision, DecisionLog


def test_a_decision_is_recorded_if_its_number_changes_or_a_minute_has_passed():
    log = DecisionLog()
    assert log.add(0.0, 1, Decision(1, "keep 1"))
    assert not log.add(1.0, 1, Decision(1, "keep 1, again"))
    assert log.add(2.0, 1, Decision(2, "scale out 1 -> 2"))
    assert not log.add(2.5, 2, Decision(2, "keep 2"))
    assert log.add(2.0 + RECORD_AGAIN_AFTER_S, 2, Decision(2, "keep 2, still"))
    assert [entry["reason"] for entry in log.recorded] == [
        "keep 1",
        "scale out 1 -> 2",
        "keep 2, still",
    ]
    assert log.add(2.1 + RECORD_AGAIN_AFTER_S, 2, Decision(2, "keep 2", standbys=1))
    assert log.recorded[1]["target_replicas"] == 1
    assert log.recorded[1]["replicas"] == 2


def test_a_clock_that_is_set_back_does_not_stop_recording():
    log = DecisionLog()
    log.add(1000.0, 1, Decision(1, "before"))
    assert log.add(10.0, 1, Decision(1, "after"))


@given(numbers=st.lists(st.integers(0, 3), max_size=300), step_s=st.floats(0.1, 100))
def test_the_log_is_bounded_and_a_restored_log_continues(numbers, step_s):
    log = DecisionLog()
    for index, number in enumerate(numbers):
        log.add(index * step_s, 1, Decision(number, "because"))
    assert len(log.recorded) <= DECISIONS_KEPT
    times = [entry["time_s"] for entry in log.recorded]
    assert times == sorted(times)
    again = DecisionLog(orjson.loads(orjson.dumps(log.recorded)))
    assert again.recorded == log.recorded
    if numbers:
        later_s = len(numbers) * step_s
        assert again.add(later_s, 1, Decision(9, "new")) == log.add(later_s, 1, Decision(9, "new"))


def test_incomplete_entries_of_a_saved_log_are_dropped():
    assert DecisionLog([{"then": 1}, {"time_s": 2.0, "replicas": 3}]).recorded == [
        {"time_s": 2.0, "replicas": 3}
    ]
