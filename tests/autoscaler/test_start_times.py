from autoscaler.start_times import DEFAULT_S, StartTimes


def test_horizon_is_the_90th_percentile_of_the_start_times():
    starts = StartTimes()
    assert starts.horizon_s == DEFAULT_S
    for number in range(1, 11):
        starts.observe(f"r{number}", float(number))
    assert starts.horizon_s == 9.0
    assert StartTimes.from_state(starts.state_dict()).horizon_s == 9.0


def test_old_starts_are_forgotten():
    starts = StartTimes()
    for number in range(50):
        starts.observe(f"old{number}", 300.0)
    for number in range(46):
        starts.observe(f"new{number}", 20.0)
    assert starts.horizon_s == 20.0


def test_one_bad_start_of_many_does_not_count():
    starts = StartTimes()
    for number in range(20):
        starts.observe(f"r{number}", 10.0)
    starts.observe("bad", 900.0)
    assert starts.horizon_s == 10.0
