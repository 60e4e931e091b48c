"""Write the dashboards of `monitoring/dashboards` from their modules.

Run ``python -m monitoring.render`` after a change of a board, then ``k8s/render.py``.
``--check`` fails if a file is out of date. It needs the package grafana-foundation-sdk, which only
development does.
"""

import argparse
import json
import sys
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from monitoring.autoscaler_board import autoscaler_board
from monitoring.pipeline_board import pipeline_board
from monitoring.replica_board import replica_board
from monitoring.sla_board import sla_board

FOLDER = Path(__file__).resolve().parent / "dashboards"


def render() -> dict[str, str]:
    """Return the content of each file by its name."""
    boards = {
        "sla": sla_board(),
        "replica": replica_board(),
        "autoscaler": autoscaler_board(),
        "pipeline": pipeline_board(),
    }
    return {
        f"{name}.json": json.dumps(content, cls=JSONEncoder, indent=1, sort_keys=True) + "\n"
        for name, content in boards.items()
    }


def main() -> str | None:
    """Write the files or, with --check, report the first one that is out of date."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only check for out-of-date files")
    check = parser.parse_args().check
    for name, content in render().items():
        file = FOLDER / name
        if check and (not file.exists() or file.read_text() != content):
            return f"monitoring/dashboards/{name} is out of date: run python -m monitoring.render"
        if not check:
            file.write_text(content)
    return None


if __name__ == "__main__":
    sys.exit(main())
