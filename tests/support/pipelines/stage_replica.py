"""A replica of a stage without Ray, in a process of its own, until its standard input ends.

``python -m tests.support.pipelines.stage_replica CODE FOLDER``
"""

import subprocess
import sys
from pathlib import Path

from deployments.pipelines.workers.batch_server import BatchServer
from deployments.pipelines.workers.predictor import Recipe, make_predictor


def start(code: str, folder: Path) -> "subprocess.Popen[bytes]":
    """Start a replica; it is there when its socket is."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.pipelines.stage_replica", code, str(folder)],
        stdin=subprocess.PIPE,
    )


def serve(code, folder: Path, lists: bool = True) -> BatchServer:
    """Return a replica in this process."""
    return BatchServer(make_predictor(Recipe(code, {}, "cpu", lists)), folder)


if __name__ == "__main__":
    server = serve(sys.argv[1], Path(sys.argv[2]))
    sys.stdin.read()
    server.close(1.0)
