"""The compiled steps."""

from deployments.pipelines.core.graph import compile_steps
from deployments.pipelines.core.steps import Each, Ensemble, Stage, Switch


def test_many_switches_one_after_another_are_each_looked_at_once():
    """Otherwise 60 of them would take 2 to the 60th steps."""
    steps = [Switch(abs, {0: Stage(abs, f"a{n}"), 1: Stage(abs, f"b{n}")}) for n in range(60)]
    least_ms, after_ms = compile_steps(steps).rest_ms([1.0, 2.0] * 60)
    assert least_ms == 60.0
    assert after_ms[:2] == [59.0, 59.0]
    assert after_ms[-2:] == [0.0, 0.0]


def test_the_rest_of_branches_counts_what_is_behind_their_join():
    steps = [
        Ensemble([Stage(abs, "a"), [Stage(abs, "b"), Switch(abs, {0: [], 1: Stage(abs, "c")})]]),
        Each(Stage(abs, "d")),
        Stage(abs, "e"),
    ]
    least_ms, after_ms = compile_steps(steps).rest_ms([1.0, 2.0, 4.0, 8.0, 16.0])
    assert least_ms == 2.0 + 16.0  # c may be skipped, and there may be no elements
    assert after_ms == [16.0, 16.0, 16.0, 16.0, 0.0]
