"""The live part of the configuration."""

from typing import Any

import numpy as np
import pytest

from deployments.config.user_config import parse_user_config
from deployments.http.priorities import PriorityLevels
from policy.errors import InvalidInputError
from policy.objective import ServiceLevelObjective, Weights
from policy.profile import Profile


def test_an_empty_user_config_has_the_default_sla() -> None:
    assert parse_user_config(None).sla.objective.in_words() == "99% of requests within 100 ms"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            {"sla": {"percentile": 100}},
            "user_config: sla.percentile: input should be less than 100",
        ),
        ({"sla": {"percentile": "high"}}, "sla.percentile: input should be a valid number"),
        ({"sla": {"response_time_ms": 0}}, "sla.response_time_ms: input should be greater than 0"),
        ({"sla": {"response_time_ms": float("nan")}}, "sla.response_time_ms: input should be"),
        ({"sla": {"latency": 1}}, "sla.latency: unknown key; known are perc"),
        ({"sla": {"percentil": 1}}, "sla.percentil: unknown key; did you mean percentile?"),
        ({"slo": {}}, "slo: unknown key; did you mean sla?"),
        ({"sla": {"percentile": 0.99}}, "sla.percentile: is in percent; write 99 for 99%"),
        (
            {"policy": {"objective": "speed"}},
            "policy.objective: input should be 'auto', 'sla' or 'weights'",
        ),
        ({"policy": {"energy_weight": -1}}, "policy.energy_weight: input should be greater than"),
        ({"policy": {"latency_weight": 0}}, "policy.latency_weight: input should be greater than"),
        ({"limits": {"waiting_room": 0}}, "limits.waiting_room: input should be greater than"),
        ({"limits": {"priority_levels": 101}}, "limits.priority_levels: input should be less than"),
        (
            {"limits": {"default_priority_level": 3}},
            "limits: default_priority_level must be at most priority_levels, 2",
        ),
        ({"autoscaler": {"horizon": 1}}, "autoscaler: horizon: unknown key; known are "),
        ({"autoscaler": {"history": {"days": 3}}}, "history: must have either `file` or"),
        ({"autoscaler": {"history": {"file": "a", "ends": "noon"}}}, "ends must be `now` or like"),
        ({"sla": {"response_time_ms": 1e-9}}, "user_config: response_time_ms must be at least 0.5"),
        (
            {"autoscaler": {"request_delay_ms": 1000}},
            "response_time_ms must be at least 1000.25, which a request's way to the replica",
        ),
        (
            {"models": {"a": {"sla": {"response_time_ms": 0.1}}}},
            "response_time_ms must be at least 0.5",
        ),
        ({"sla": {"response_time_ms": True}}, "sla.response_time_ms: must be a number, not True"),
        ({"limits": {"waiting_room": True}}, "limits.waiting_room: must be a number, not True"),
        ({"autoscaler": {"rsk": 1}}, "autoscaler: rsk: unknown key; did you mean risk?"),
    ],
)
def test_a_wrong_user_config_is_rejected_in_one_line(content: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_user_config(content)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_lowest_level_of_priority_is_the_default() -> None:
    limits = parse_user_config({"limits": {"priority_levels": 4}}).limits
    assert limits.priorities == PriorityLevels(4, default=4)
    limits = parse_user_config(
        {"limits": {"priority_levels": 4, "default_priority_level": 2}}
    ).limits
    assert limits.priorities == PriorityLevels(4, default=2)


WITHOUT_ENERGY = Profile("m", "d", np.arange(1.0, 5.0))
WITH_ENERGY = Profile("m", "d", np.arange(1.0, 5.0), energy_mj=np.arange(1.0, 5.0))


def test_the_objective_follows_the_config() -> None:
    sla = {"response_time_ms": 50, "percentile": 95}
    by_default = parse_user_config({"sla": sla})
    assert by_default.policy_objective(WITH_ENERGY) == ServiceLevelObjective(45.0, 95.0)
    assert by_default.policy_objective(WITHOUT_ENERGY) == Weights()
    by_sla = parse_user_config({"sla": sla, "policy": {"objective": "sla"}})
    assert by_sla.policy_objective(WITHOUT_ENERGY) == ServiceLevelObjective(45.0, 95.0)
    by_weights = parse_user_config({"policy": {"objective": "weights", "energy_weight": 2}})
    assert by_weights.policy_objective(WITH_ENERGY) == Weights(1.0, 2.0)


def test_the_sla_at_the_replica_leaves_the_delays_to_the_network() -> None:
    delays = {"request_delay_ms": 3.0, "reply_delay_ms": 2.0}
    config = parse_user_config({"sla": {"response_time_ms": 50}, "autoscaler": delays})
    assert config.sla_at_replica() == ServiceLevelObjective(45.0, 99.0)


def test_a_model_takes_what_holds_for_it_and_the_rest_from_all() -> None:
    config = parse_user_config(
        {
            "sla": {"response_time_ms": 70, "percentile": 95},
            "limits": {"late": "serve"},
            "models": {"b": {"sla": {"response_time_ms": 500, "percentile": 99}}},
        }
    )
    assert config.for_model("a").sla.response_time_ms == 70
    assert config.for_model("b").sla.response_time_ms == 500
    assert config.for_model("b").limits.late == "serve"
