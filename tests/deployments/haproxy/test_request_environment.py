"""HAProxy's settings that follow from the model and the config."""

from pathlib import Path

from deployments.config.document import ServiceConfig, load_service_configs
from deployments.config.user_config import parse_user_config
from deployments.haproxy.command import HELD_MS
from deployments.haproxy.request_environment import (
    MIN_BUFFER_BYTES,
    RequestTraits,
    request_environment,
    traits_of,
)
from deployments.models.base import TensorSpec
from deployments.models.emulated import Emulated

CONFIGS = Path(__file__).parents[3] / "configs"
IMAGE_BYTES = 4 * 3 * 224 * 224


def config_of(**limits):
    service = load_service_configs(CONFIGS / "digits.yaml")[0]
    return service.model_copy(update={"user_config": parse_user_config({"limits": limits})})


def buffer_bytes(config: ServiceConfig, traits: RequestTraits):
    environment = request_environment([config], [traits], own={})
    return int(environment["RAY_SERVE_HAPROXY_TUNE_BUFSIZE"])


def test_a_row_has_the_bytes_of_its_tensors_without_texts(monkeypatch):
    image = TensorSpec("image", "FP32", (3, -1, -1), max_dim=224)
    monkeypatch.setattr(Emulated, "inputs", (image, TensorSpec("k", "BYTES")))
    monkeypatch.setattr(Emulated, "idempotent", False)
    assert traits_of(Emulated) == RequestTraits(IMAGE_BYTES, idempotent=False)


def test_the_buffer_fits_one_row_and_is_never_small():
    config = config_of()
    assert buffer_bytes(config, RequestTraits(256)) == MIN_BUFFER_BYTES
    assert IMAGE_BYTES + 8192 < buffer_bytes(config, RequestTraits(IMAGE_BYTES)) < 640 << 10
    assert buffer_bytes(config, RequestTraits(1 << 30)) == 16 << 20


def test_the_config_and_the_users_own_setting_win():
    config = config_of(expert={"retry_body_bytes": 20_000_000})
    assert 20_008_192 < buffer_bytes(config, RequestTraits(256)) < 21_000_000
    own = {"RAY_SERVE_HAPROXY_TUNE_BUFSIZE": "16384"}
    environment = request_environment([config], [RequestTraits(256)], own)
    assert environment["RAY_SERVE_HAPROXY_TUNE_BUFSIZE"] == "16384"


def test_what_may_have_run_is_not_sent_again_for_a_model_that_is_not_idempotent():
    name = "RAY_SERVE_HAPROXY_RETRY_ON"
    config = config_of()
    assert name not in request_environment([config], [RequestTraits()], {})
    # Models behind one HAProxy share the largest buffer and the strictest rule.
    traits = [RequestTraits(256), RequestTraits(IMAGE_BYTES, idempotent=False)]
    together = request_environment([config, config], traits, {})
    assert together == request_environment([config], traits[1:], {})
    assert together[name] == "503 conn-failure"


def test_requests_are_held_within_the_sla_unless_replicas_scale_to_zero_or_answer_late():
    service, late = config_of(), config_of(late="serve")
    for least, other, named in (
        (1, service, "http-digits=50,http-other=50"),
        (0, service, "http-digits=50"),
        (1, late, "http-digits=50"),
    ):
        other = other.model_copy(update={"application": "other", "replicas": (least, 4)})
        environment = request_environment([service, service, other], [RequestTraits()] * 3, {})
        assert environment[HELD_MS] == named


def test_a_reload_closes_no_request_before_its_own_limit():
    name = "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S"
    for timeout_ms, seconds in ((60_000, None), (300_500, "301")):
        config = config_of(expert={"max_timeout_ms": timeout_ms})
        assert request_environment([config], [RequestTraits()], {}).get(name) == seconds
