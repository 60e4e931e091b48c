"""Solve requests and their results as JSON."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from deployments.control.solve_request import SolveRequest, SolveResult
from deployments.control.table_solver import work_conserving_table
from policy.front import FrontCosts
from policy.load_lateness import LoadLatenessCurve
from policy.objective import ServiceLevelObjective, Weights
from policy.profile import Profile

PROFILE = Profile("m", "d", 1.0 + 0.5 * np.arange(1, 5), energy_mj=np.arange(2.0, 6.0))
REQUEST = SolveRequest(PROFILE, Weights(1.0, 2.0), ServiceLevelObjective(9.5, 99.0), waiting_room=8)
CURVE = LoadLatenessCurve(10.0, tuple(np.linspace(0, 1, 16).tolist()), 4)


@pytest.mark.parametrize("objective", [REQUEST.objective, ServiceLevelObjective(8.0, 95.0)])
def test_a_request_survives_json(objective: Weights | ServiceLevelObjective) -> None:
    request = replace(REQUEST, objective=objective)
    assert SolveRequest.from_dict(json.loads(json.dumps(request.to_dict()))).same_as(request)


@pytest.mark.parametrize(
    "other",
    [
        {"front": FrontCosts(0.1, 0.2, shares_cpu=False)},
        {"front": FrontCosts(0.1, 0.2, shares_cpu=True)},
        {"cpus": 2.0},
    ],
)
def test_another_front_or_number_of_cpus_is_solved_anew(other: dict[str, Any]) -> None:
    changed = replace(REQUEST, profile=replace(PROFILE, **other))
    assert not changed.same_as(REQUEST)
    assert changed.curve_name != REQUEST.curve_name
    assert SolveRequest.from_dict(json.loads(json.dumps(changed.to_dict()))).same_as(changed)


def test_another_limit_on_admission_is_solved_anew() -> None:
    changed = replace(REQUEST, admit_within_ms=9.2)
    assert changed.curve_name != REQUEST.curve_name
    for request in (changed, REQUEST):
        read = SolveRequest.from_dict(json.loads(json.dumps(request.to_dict(), allow_nan=False)))
        assert read.same_as(request)
        assert read.admit_within_ms == request.admit_within_ms


@pytest.mark.parametrize(
    "curve", [None, CURVE, replace(CURVE, overload_levels=tuple(np.linspace(1, 0, 7).tolist()))]
)
def test_a_result_survives_json(curve: LoadLatenessCurve | None) -> None:
    result = SolveResult(work_conserving_table(PROFILE, REQUEST.objective), curve)
    assert SolveResult.from_dict(json.loads(json.dumps(result.to_dict()))) == result
