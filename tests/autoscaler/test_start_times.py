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


def test_one_slow_start_of_many_does_not_count():
    starts = StartTimes()
    for number in range(20):
        starts.observe(f"r{number}", 10.0)
    starts.observe("bad", 900.0)
    assert starts.horizon_s == 10.0


def test_observed_start_times_replace_those_that_replicas_report():
    starts = StartTimes()
    starts.observe("r1", 1.5)
    assert starts.horizon_s == 1.5
    starts.track(100.0, ordered=1, ready=1)
    starts.track(101.0, ordered=3, ready=1)
    starts.track(105.0, ordered=4, ready=1)
    starts.track(111.0, ordered=4, ready=2)
    assert starts.horizon_s == 10.0
    starts.track(113.0, ordered=4, ready=3)
    assert starts.horizon_s == 12.0
    assert StartTimes.from_state(starts.state_dict()).horizon_s == 12.0


def test_cancelled_orders_are_not_waited_for():
    starts = StartTimes()
    starts.track(0.0, ordered=1, ready=1)
    starts.track(1.0, ordered=2, ready=1)
    starts.track(5.0, ordered=3, ready=1)
    starts.track(6.0, ordered=2, ready=1)
    starts.track(9.0, ordered=2, ready=2)
    starts.track(20.0, ordered=2, ready=1)  # a replica died
    starts.track(31.0, ordered=2, ready=2)
    assert starts.state_dict()["observed_s"] == [8.0, 11.0]


def test_starts_under_way_at_the_first_observation_are_ignored():
    starts = StartTimes()
    starts.track(50.0, ordered=3, ready=1)
    starts.track(51.0, ordered=3, ready=3)
    assert starts.horizon_s == DEFAULT_S


def test_a_start_that_failed_for_long_does_not_set_the_horizon():
    starts = StartTimes()
    starts.track(0.0, ordered=1, ready=1)
    for number in range(1, 4):
        starts.track(100.0 * number, ordered=number + 1, ready=number)
        starts.track(100.0 * number + 10, ordered=number + 1, ready=number + 1)
    starts.track(1000.0, ordered=5, ready=4)
    starts.track(1900.0, ordered=5, ready=5)
    assert starts.horizon_s == 30.0
