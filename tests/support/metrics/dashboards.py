"""The dashboards as Grafana reads them, and the queries of their panels."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.processes.services import ROOT

FOLDER = ROOT / "k8s/monitoring/dashboards"
BOARDS: Mapping[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))
}


@dataclass(frozen=True)
class PanelQuery:
    """A query of a panel, with the variables that Grafana replaces."""

    board: str
    title: str
    legend: str
    expr: str

    def filled(self, application: str, rate_interval: str) -> str:
        """Return the query as Grafana sends it, with all chosen that may be: ``.*``."""
        expr = self.expr.replace("$application", application)
        return re.sub(r"\$\w+", ".*", expr.replace("$__rate_interval", rate_interval))


QUERIES = [
    PanelQuery(board, panel["title"], target["legendFormat"], target["expr"])
    for board in BOARDS
    for panel in BOARDS[board]["panels"]
    if panel["type"] != "row"
    for target in panel["targets"]
]
