import math

import numpy as np

from autoscaler.history.traces import Trace
from autoscaler.settings import AutoscalerSettings
from autoscaler.simulator.autoscalers.sojourn import SojournAutoscaler
from autoscaler.standbys import TwoTierStarts
from policy.load_lateness import LoadLatenessCurve
from tests.support.autoscaling import reports
from tests.support.autoscaling.fleet_views import view


def report(replica, now_s, rate_per_s):
    late_shares = tuple(0.01 * multiple for multiple in LoadLatenessCurve.MULTIPLES)
    curve = {"sla_rate_per_s": 2000.0, "late_shares": late_shares}
    return reports.report(f"replica-{replica}", now_s, rate_per_s * now_s, **curve)


def final_replicas(policy: SojournAutoscaler, rate_per_s, seconds):
    """Share a constant load among the ordered replicas and return how many there are at the end."""
    ordered = 1
    for second in range(1, seconds + 1):
        told = tuple(report(n, second, rate_per_s / ordered) for n in range(ordered))
        ordered = policy.replicas(view(second, ready=ordered, reports=told))
    return ordered


def test_scales_out_until_the_load_is_carried():
    policy = SojournAutoscaler(AutoscalerSettings(window_s=5))
    assert math.isnan(policy.forecast_per_s)
    assert final_replicas(policy, 9000.0, 30) >= 4  # about three times what one has capacity for


def test_sees_reports_a_second_late():
    prompt = SojournAutoscaler(report_lag_s=0)
    late = SojournAutoscaler(report_lag_s=1)
    first = view(1, reports=(report(0, 1, 100.0),))
    prompt.replicas(first)
    late.replicas(first)
    assert "no replica has reported" not in prompt.decision.reason
    assert "no replica has reported" in late.decision.reason


def test_knows_the_jumps_of_its_past():
    """A standby serves after a second, so it need not be ordered to serve 20 s ahead of a burst."""
    seconds = 5 * 3600
    times = np.arange(-seconds, 0) - 20  # the next of the bursts, each half hour, is due in 20 s
    rates = np.where(times % 1800 < 300, 9000.0, 1000.0)
    past = Trace(np.random.default_rng(1).poisson(rates).astype(float), 1, -seconds, False)
    settings = AutoscalerSettings(window_s=5, risk=0.001)
    assert final_replicas(SojournAutoscaler(settings), 1000.0, 15) == 1
    assert final_replicas(SojournAutoscaler(settings, history=past), 1000.0, 15) >= 5

    starts, settings = TwoTierStarts(1.0, 60.0), AutoscalerSettings(window_s=5, risk=0.05)
    with_standbys = SojournAutoscaler(settings, starts=starts, history=past)
    assert final_replicas(with_standbys, 1000.0, 15) == 1
    assert (with_standbys.decision.replicas, with_standbys.decision.standbys) == (1, 4)
