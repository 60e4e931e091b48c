"""The program that runs a cluster of two nodes on this machine.

It reads a config as JSON from standard input, writes the dashboard's URL, and ends with its input.
"""

import json
import os
import sys
import traceback
from typing import Any

import ray
from ray import serve
from ray.cluster_utils import Cluster

from benchmarks.resilience.service import PORT
from deployments.local.cluster import OBJECT_STORE_BYTES, deploy
from deployments.local.descendants import adopted_orphans, end_descendants
from deployments.local.machine import LOOPBACK, free_port

#: Of each node; Ray takes whole numbers only.
CPUS = 1
#: What differs between nodes that share a machine.
_PORTS = (
    "RAY_SERVE_WORKER_PROXY_HTTP_PORT",
    "RAY_SERVE_HAPROXY_METRICS_PORT",
    "RAY_SERVE_HAPROXY_STATS_PORT",
)


def main() -> None:
    """Run two nodes until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what Ray prints
    document = json.loads(sys.stdin.readline())
    with adopted_orphans():
        try:
            answers.write(f"{_start(document)}\n")
            sys.stdin.read()
        except Exception:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            end_descendants()
            os._exit(0)  # Ray's threads may hold the interpreter up


def _start(document: dict[str, Any]) -> str:
    """Start Ray and Serve on two nodes, deploy, and return the dashboard's URL."""
    resources = {"num_cpus": CPUS, "object_store_memory": OBJECT_STORE_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args={**resources, "include_dashboard": True})
    for name in _PORTS:
        os.environ[name] = str(free_port(0))
    cluster.add_node(**resources)
    ray.init(address=cluster.address, logging_level="ERROR")
    serve.start(proxy_location="EveryNode", http_options={"host": LOOPBACK, "port": PORT})
    dashboard = f"http://{cluster.webui_url}"
    deploy(document, dashboard)
    return dashboard


if __name__ == "__main__":
    main()
