"""A real Prometheus with the rules of `k8s/monitoring`, for tests."""

import subprocess
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.support.ports import free_port
from tests.support.processes.services import ROOT
from tests.support.waiting import LIMIT_S, wait_for


class Prometheus:
    """A Prometheus that scrapes ``HOST:PORT`` each second."""

    def __init__(self, folder: Path, target: str) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(ROOT / "k8s/monitoring/rules.yaml")],
            "scrape_configs": [{"job_name": "ray", "static_configs": [{"targets": [target]}]}],
        }
        self._client = httpx.Client()
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        self._process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={self.url.removeprefix('http://')}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def __enter__(self) -> "Prometheus":
        assert wait_for(lambda: self.get("status/runtimeinfo"))
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()
        self._process.terminate()
        self._process.wait(LIMIT_S)

    def get(self, path: str, **query: str) -> Any:
        answer = self._client.get(f"{self.url}/api/v1/{path}", params=query).raise_for_status()
        return answer.json()["data"]

    def values(self, expression: str) -> list[float]:
        """Return the values of an expression, one for each combination of labels."""
        result = self.get("query", query=expression)["result"]
        return [float(series["value"][1]) for series in result]

    def value(self, expression: str) -> float:
        """Return the value of an expression that has one; raise KeyError if it has none."""
        values = self.values(expression)
        if len(values) != 1:
            raise KeyError(expression)
        return values[0]
