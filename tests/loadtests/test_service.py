import pytest

from deployments.config.user_config import SLAConfig
from loadtests import service
from loadtests.service import policy_of, service_sla

SLOW, FAST = (
    {"sla": {"response_time_ms": response_time_ms, "percentile": 99.0}}
    for response_time_ms in (1000.0, 20.0)
)
ONE = {"model": "a", **SLOW}
TWO = {**ONE, "models": {"b": {"model": "b", **FAST}}}


@pytest.mark.parametrize(
    ("model", "policy", "expected"),
    [
        ("a", TWO, SLOW["sla"]),
        ("b", TWO, FAST["sla"]),
        ("b", ONE, None),
        ("c", TWO, None),  # not loaded yet
        ("b", SLOW, SLOW["sla"]),
    ],
)
def test_the_sla_is_that_of_the_model_under_test(monkeypatch, model, policy, expected):
    monkeypatch.setattr(service, "read_json", lambda url, token, path: policy)
    found = service_sla("http://service", model)
    assert found == (expected and SLAConfig(**expected))
    assert policy_of(model, policy).get("sla") == expected
