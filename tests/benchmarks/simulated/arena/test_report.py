"""How the comparison of autoscalers sums up its runs."""

from dataclasses import replace
from pathlib import Path

from benchmarks.simulated.arena.report import (
    Row,
    best_tuned,
    beyond,
    draw_frontiers,
    frontier,
    held_share,
    rows,
)

ROW = Row(
    trace="t",
    service="slow",
    start_time_s=60,
    label="a",
    family="sojourn",
    knob=None,
    seeds=1,
    service_level=1.0,
    held=1.0,
    over_oracle=1.0,
    over_window_oracle=1.0,
    energy_over_oracle=1.0,
    scalings_per_hour=0.0,
    held_range=(1.0, 1.0),
    over_oracle_range=(1.0, 1.0),
)


def at(cost: float, held: float, label: str = "a", family: str = "sojourn") -> Row:
    return replace(ROW, over_oracle=cost, held=held, label=label, family=family)


def record(label: str, seed: int, compliant: str, replica_seconds: float) -> dict[str, object]:
    return {
        "trace": "t",
        "service": "slow",
        "start_time_s": 60,
        "seed": seed,
        "family": label,
        "label": label,
        "knob": None,
        "service_level": 0.99,
        "compliant": compliant,
        "replica_seconds": replica_seconds,
        "energy_j": 10.0,
        "scalings_per_hour": 4.0,
    }


def test_only_windows_that_the_oracle_holds_count() -> None:
    assert held_share("1100", "1010") == 0.5
    assert held_share("0000", "0000") == 1.0


def test_each_seed_is_compared_with_the_oracle_of_its_own_arrivals() -> None:
    records = []
    for seed, oracle, cost in ((0, "1111", 100.0), (1, "1100", 200.0), (2, "1111", 100.0)):
        records += [
            record("oracle", seed, oracle, cost),
            record("window oracle", seed, oracle, cost / 2),
            record("peak", seed, "1101", 220.0),
        ]
    peak = next(row for row in rows(records) if row.label == "peak")
    assert (peak.held, peak.held_range) == (0.75, (0.75, 1.0))
    assert (peak.over_oracle, peak.over_oracle_range) == (2.2, (1.1, 2.2))
    assert peak.over_window_oracle == 4.4
    assert peak.seeds == 3


def test_the_frontier_leaves_out_dominated_points() -> None:
    points = [at(1.2, 0.9), at(1.0, 0.8), at(1.1, 0.95), at(1.1, 0.7), at(2.0, 1.0)]
    assert [(row.over_oracle, row.held) for row in frontier(points)] == [
        (1.0, 0.8),
        (1.1, 0.95),
        (2.0, 1.0),
    ]


def test_points_that_hold_more_at_the_same_cost_are_beyond_a_curve() -> None:
    ours = [at(1.0, 0.8), at(2.0, 1.0)]
    above, on, below = at(1.5, 0.91), at(1.5, 0.9), at(1.5, 0.89)
    assert beyond([above, on, below, at(3.0, 1.0), at(0.5, 0.7)], ours) == [above]


def test_the_best_of_a_grid_is_the_cheapest_that_reaches_the_goal() -> None:
    assert best_tuned([at(1.4, 0.995), at(1.3, 0.99), at(1.0, 0.98)]).over_oracle == 1.3
    assert best_tuned([at(1.4, 0.97), at(1.3, 0.98), at(2.0, 0.98)]).over_oracle == 1.3


def test_a_curve_that_misses_nothing_can_be_drawn(tmp_path: Path) -> None:
    path = tmp_path / "frontier.png"
    curves = {"sojourn": [at(1.0, 0.99), at(1.2, 1.0)], "ray": [at(3.0, 0.9)]}
    draw_frontiers(curves, [at(1.0, 1.0, "oracle", "oracle")], "a trace", path)
    assert path.read_bytes().startswith(b"\x89PNG")
