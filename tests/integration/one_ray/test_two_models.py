"""Two models in one config file, on real Ray Serve behind one HAProxy."""

import httpx
import pytest

from tests.support.processes.services import Running, load_document, serving_late
from tests.support.waiting import LIMIT_S

pytestmark = pytest.mark.integration


def test_each_model_answers_under_its_route_and_its_sla(one_ray: Running) -> None:
    service = one_ray.serve_instead(serving_late(load_document("two-models.yaml")))
    with httpx.Client(base_url=service.url, timeout=LIMIT_S) as client:
        for model, output, response_time_ms in (
            ("digits", "label", 100),
            ("googlenet", "output", 500),
        ):
            sla = client.get(f"/{model}/sojourn/policy").json()["sla_in_words"]
            assert sla == f"99% of requests within {response_time_ms} ms"
            request = client.get(f"/{model}/sojourn/example").json()
            answer = client.post(f"/{model}/v2/models/{model}/infer", json=request)
            assert answer.status_code == 200
            assert output in {tensor["name"] for tensor in answer.json()["outputs"]}
        assert client.get("/digits/v2/models/googlenet").status_code == 404
