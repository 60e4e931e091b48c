import pytest

from deployments.config.user_config import SLAConfig
from loadtests import service
from loadtests.service import model_metadata, policy_of, service_sla
from policy.errors import InvalidInputError

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


def test_a_service_of_one_model_is_asked_for_its_name(monkeypatch):
    hosted = ["tickets"]
    metadata = {"name": "tickets", "inputs": [], "outputs": []}
    paths = {"/v2/models": {"models": hosted}, "/v2/models/tickets": metadata}
    monkeypatch.setattr(service, "ask", lambda url, path, token: paths[path])
    assert model_metadata("http://s", None) == metadata
    hosted.append("mails")
    with pytest.raises(InvalidInputError, match="has tickets, mails: choose one by --model"):
        model_metadata("http://s", None)


@pytest.mark.parametrize("hosted", [[], None, 5, "abc", {"a": 1}, [1], [{"name": "a"}], [{}, {}]])
def test_a_list_of_models_in_another_form_is_not_the_protocol(monkeypatch, hosted):
    monkeypatch.setattr(service, "ask", lambda url, path, token: {"models": hosted})
    with pytest.raises(InvalidInputError, match="does not speak the Open Inference Protocol"):
        model_metadata("http://s", None)
