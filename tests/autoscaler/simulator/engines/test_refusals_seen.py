"""What simulated replicas know of the others' refusals is what HAProxy tells live ones."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.simulator.arrivals import WithinSecond
from autoscaler.simulator.autoscalers.fixed import FixedFleet
from autoscaler.simulator.engines import kernel
from autoscaler.simulator.engines.refusals_seen import RefusalsSeen
from autoscaler.simulator.scaling import FleetView
from autoscaler.simulator.scenario import Scenario
from autoscaler.simulator.simulation import EngineName, Simulation
from deployments.haproxy.other_replicas import RefusedElsewhere
from deployments.http import retry_budget
from policy.batching_policy import BatchingPolicy
from policy.objective import ServiceLevelObjective
from policy.profile import Profile

COLUMNS = "# pxname,svname,stot,wretr,hrsp_5xx,bck"


def table(tries: list[tuple[int, int]]) -> str:
    rows = [f"b,r-{slot},{sent},{refused},0,0" for slot, (sent, refused) in enumerate(tries)]
    return "\n".join([COLUMNS, *rows])


@pytest.mark.slow
@given(
    st.lists(
        st.lists(
            st.integers(0, 200).flatmap(
                lambda sent: st.tuples(st.just(sent), st.integers(0, sent))
            ),
            min_size=3,
            max_size=3,
        ),
        min_size=1,
        max_size=6,
    )
)
def test_it_agrees_with_what_a_replica_reads_from_haproxy(
    seconds: list[list[tuple[int, int]]],
) -> None:
    seen, live = RefusalsSeen(), [RefusedElsewhere(f"-{slot}") for slot in range(3)]
    for slot, one in enumerate(live):
        seen.added(slot)
        one.observe(table(3 * [(0, 0)]), 0.0)
    totals = np.zeros((3, 2), int)
    for second, counts in enumerate(seconds, start=1):
        totals += np.array(counts)
        tries = [(int(sent), int(refused)) for sent, refused in totals]
        shares = seen.look(float(second), [0, 1, 2], tries)
        for one, share in zip(live, shares, strict=True):
            one.observe(table(tries), float(second))
            assert share == pytest.approx(one.share(float(second)), abs=1e-9)


def test_a_new_replica_in_a_slot_begins_anew() -> None:
    seen = RefusalsSeen()
    for slot in range(2):
        seen.added(slot)
    assert seen.look(1.0, [0, 1], [(100, 100), (100, 0)]).tolist() == [0.0, 1.0]
    seen.added(0)
    assert seen.look(2.0, [0, 1], [(100, 0), (100, 0)])[1] == 0.0


def test_it_looks_once_a_second() -> None:
    seen = RefusalsSeen()
    assert not seen.is_due(0.5)
    assert seen.is_due(1.0)
    assert seen.look(1.0, [], []).size == 0
    assert not seen.is_due(1.5)
    assert not seen.is_due(np.inf)


def test_the_compiled_engine_has_the_bounds_of_the_live_replica() -> None:
    bounds = (retry_budget.ALL_UP_TO, retry_budget.NONE_FROM)
    assert bounds == (kernel.ALL_UP_TO, kernel.NONE_FROM)


class Watching(FixedFleet):
    """Three replicas; keeps what they report."""

    def replicas(self, view: FleetView) -> int:
        """Return the number of replicas."""
        self.reports = view.reports()
        return super().replicas(view)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["live", "compiled"])
@pytest.mark.parametrize("factor", [0.8, 3.0])
def test_refusals_are_final_once_the_others_are_as_full(engine: EngineName, factor: float) -> None:
    """Three replicas take 100 requests/s each; at three times that, all refuse two thirds."""
    scenario = Scenario(
        Profile("m", "d", np.array([10.0])),
        ServiceLevelObjective(60.0, 99.0),
        np.full(8, 300.0 * factor),
        within_second=WithinSecond.UNIFORM,
        batching=BatchingPolicy.from_control_limit(1, 1),
        replicas=3,
    )
    fleet = Watching(3)
    run = Simulation(scenario, fleet, engine=engine).run()
    tries = sum(report.offered_total for report in fleet.reports)
    finally_refused = sum(report.refused_finally_total for report in fleet.reports)
    if factor < 1:
        assert finally_refused == 0
        assert run.refused.sum() < 0.01 * run.offered.sum()
        return
    # In the first second all refusals are tried elsewhere; from then on hardly any.
    assert finally_refused > 0.7 * run.refused.sum()
    assert tries < 2 * run.offered.sum()
    assert run.in_time.sum() > 0.95 * 8 * 300
