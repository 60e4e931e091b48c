import numpy as np
import pytest

from autoscaler.settings import AutoscalerSettings
from deployments.config.user_config import parse_user_config
from policy.errors import InvalidInputError
from policy.objective import ServiceLevelObjective, Weights
from policy.profile import Profile


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"sla": {"percentile": 100}}, "user_config.sla.percentile: input should be less than 10"),
        ({"slo": {}}, "slo: unknown key; did you mean sla?"),
        ({"sla": {"percentile": 0.99}}, "sla.percentile: is in percent; write 99 for 99%"),
        ({"sla": "fast"}, "sla: must be like 50ms@95 or p95=50ms, not 'fast'"),
        ({"sla": "50ms@0.95"}, "sla: percentile: is in percent; write 95 for 95%"),
        ({"sla": "0.1ms@99"}, "user_config.sla: response_time_ms must be at least 0.5, which a"),
        ({"models": {"a": {"sla": "0.1ms@99"}}}, "models.a.sla: response_time_ms must be at least"),
        ({"policy": {"energy_weight": 1}}, "policy: energy_weight has no effect without `objecti"),
        ({"autoscaler": {"expert": {"rsk": 1}}}, "autoscaler.expert.rsk: unknown key; known are "),
        ({"autoscaler": {"compliant_minutes": 0.99}}, "is in percent; write 99 for 99%"),
        ({"autoscaler": {"standbys": True}}, "standbys: must be auto or a whole number of at leas"),
        ({"autoscaler": {"history": {}}}, "history: must have either `file` or"),
    ],
)
def test_a_wrong_user_config_is_rejected_in_one_line(content, message):
    with pytest.raises(InvalidInputError) as caught:
        parse_user_config(content)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


WITHOUT_ENERGY = Profile("m", "d", np.arange(1.0, 5.0))
WITH_ENERGY = Profile("m", "d", np.arange(1.0, 5.0), energy_mj=np.arange(1.0, 5.0))


def test_the_objective_follows_the_config():
    sla = {"response_time_ms": 50, "percentile": 95}
    by_default = parse_user_config({"sla": sla})
    assert by_default.service_model(WITH_ENERGY).objective == ServiceLevelObjective(45.0, 95.0)
    assert by_default.service_model(WITHOUT_ENERGY).objective == Weights()
    by_sla = parse_user_config({"sla": sla, "policy": {"objective": "sla"}})
    assert by_sla.service_model(WITHOUT_ENERGY).objective == ServiceLevelObjective(45.0, 95.0)
    by_weights = parse_user_config({"policy": {"objective": "weights", "energy_weight": 2}})
    assert by_weights.service_model(WITH_ENERGY).objective == Weights(1.0, 2.0)


def test_the_sla_at_the_replica_leaves_the_delays_to_the_network():
    config = parse_user_config({"sla": "50ms@99"})
    assert config.service_model(WITH_ENERGY).sla == ServiceLevelObjective(49.5, 99.0)


def test_settings_are_those_of_the_autoscaler():
    assert parse_user_config({}).autoscaler.settings() == AutoscalerSettings()
    given = {"compliant_minutes": 95, "standbys": "auto", "expert": {"risk_percent": 5}}
    settings = parse_user_config({"autoscaler": given}).autoscaler.settings()
    assert settings == AutoscalerSettings(compliant_minutes=95.0, standbys="auto", risk=0.05)


def test_a_model_takes_what_holds_for_it_and_the_rest_from_all():
    of_b = {"b": {"sla": "500ms@99"}}
    config = parse_user_config({"sla": "70ms@95", "limits": {"late": "serve"}, "models": of_b})
    assert config.for_model("a").sla.response_time_ms == 70
    assert config.for_model("b").sla.response_time_ms == 500
    assert config.for_model("b").limits.late == "serve"
