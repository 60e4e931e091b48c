import pytest

from autoscaler.scaled_deployments import scaled_deployment
from benchmarks.simulated.decision_time import APP, UTILIZATION, decision_times_ms
from tests.support.autoscaling.stores import Store


@pytest.mark.slow
def test_a_decision_is_made_each_second_on_the_load_that_the_replicas_report() -> None:
    times_ms = decision_times_ms(3, 20)
    assert times_ms.shape == (20,)
    assert (times_ms > 0).all()
    newest = scaled_deployment(0.0, APP, "3 replicas", Store()).log.newest
    assert newest is not None
    assert newest["arrival_rate_per_s"] == pytest.approx(
        3 * UTILIZATION * newest["sla_rate_per_s"], rel=0.1
    )
    assert newest["method"]
