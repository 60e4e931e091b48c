"""Two models in one config file, on real Ray Serve behind one HAProxy."""

from pathlib import Path

import httpx
import pytest

from tests.support.processes.pages import run_block
from tests.support.processes.services import load_document, serving, serving_late
from tests.support.readme import blocks
from tests.support.waiting import LIMIT_S

pytestmark = pytest.mark.integration


def test_each_model_answers_under_its_route_and_its_sla(tmp_path: Path) -> None:
    with serving(tmp_path / "two.yaml", serving_late(load_document("two-models.yaml"))) as service:
        digits, googlenet = service.summary["models"]
        assert digits["url"].endswith("/digits")
        assert googlenet["url"].endswith("/googlenet")
        assert (digits["sla"], googlenet["sla"]) == (
            "99% of requests within 100 ms",
            "99% of requests within 500 ms",
        )
        with httpx.Client(timeout=LIMIT_S) as client:
            for summary, output in ((digits, "label"), (googlenet, "output")):
                request = client.get(f"{summary['url']}/sojourn/example").json()
                answer = client.post(
                    f"{summary['url']}/v2/models/{summary['model']}/infer", json=request
                )
                assert answer.status_code == 200
                assert output in {tensor["name"] for tensor in answer.json()["outputs"]}
            wrong = client.get(f"{digits['url']}/v2/models/googlenet")
            assert wrong.status_code == 404
        _, ask = blocks("console", "docs/several_models.md")
        root = digits["url"].removesuffix("/digits")
        shown = run_block(ask, tmp_path, {"http://127.0.0.1:8000": root})
        assert '"label"' in shown
        assert "right answers" in shown
