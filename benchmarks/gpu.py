"""Measure what only a GPU can show: predictions, power, copies. Without Ray.

    python -m benchmarks.gpu [--quick] [--json]

One command for a machine that has a GPU and the packages of requirements.lock; Ray and Locust may
be missing. Without a GPU it runs on the CPU, and what needs one is null. It takes under five
minutes; with ``--quick``, one. `sojourn profile --device cuda` measures the time and the energy of
batches.

- ``service``: the digits behind our batcher and ASGI app on uvicorn. Poisson arrivals come at 0.3,
  0.6 and 0.9 of the rate that the replica says it can take within its SLA: predicted and measured
  percentiles, and mean power. `greedy` starts a batch whenever the device is free; `policy` keeps
  the SLA with the least energy, or if energy is not known, with the least time of the device.
- ``store``: loading from the model store to the GPU, compared with a copy of the same bytes from
  pinned memory (``host_to_gpu_fraction``).
"""

import json
import os
import platform
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from torch import nn

from benchmarks.arguments import json_option, print_result, quick_option
from benchmarks.peers.open_loop import open_loop
from benchmarks.peers.protocols import OpenInference, Workload, example_rows
from benchmarks.peers.servers import HOST, PORT, SERVERS, running
from benchmarks.store_models import MB, manager, publish, timed
from deployments.local.urls import get_json
from deployments.modelstore.tensors import load_state_dict
from deployments.profiling.energy import best_meter
from loadtests.schedule import Step, poisson_schedule
from sojourn.output import say

LOADS = (0.3, 0.6, 0.9)
PERCENTILES = (50, 95, 99)
SLA = {"response_time_ms": 50, "percentile": 99}
OBJECTIVES = {
    "greedy": {"objective": "weights", "energy_weight": 0},
    "policy": {"objective": "sla"},
}


def said() -> dict[str, Any]:
    """Return what the replica says of itself."""
    content: dict[str, Any] = get_json(f"http://{HOST}:{PORT}/sojourn/policy")
    return content


def under_load(workload: Workload, rate_per_s: float, run_s: float, device: str) -> dict[str, Any]:
    """Send Poisson load; return predicted and measured percentiles, and the mean power."""
    meter, _ = best_meter(device)
    begin_mj, begin_s = None if meter is None else meter.read_mj(), time.monotonic()
    arrivals_s = poisson_schedule([Step(run_s, rate_per_s)], seed=1).arrivals_s
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(open_loop, workload, arrivals_s, PORT)
        # The prediction that counts is the one made under the load.
        time.sleep(0.9 * run_s)
        policy = said()
        run = running.result()
    power_w = None
    if meter is not None and begin_mj is not None:
        power_w = 1e-3 * (meter.read_mj() - begin_mj) / (time.monotonic() - begin_s)
    answered = run.answered
    times_ms = run.response_ms[answered]
    measured = np.percentile(times_ms, PERCENTILES).tolist() if times_ms.size else None
    return {
        "rate_per_s": rate_per_s,
        "predicted_ms": policy["predicted_ms"],
        "measured_ms": measured and dict(zip(map(str, PERCENTILES), measured, strict=True)),
        "answered_fraction": float(np.mean(answered)),
        "mean_power_w": power_w,
        "control_limit": policy["control_limit"],
    }


def service(device: str, quick: bool) -> dict[str, Any]:
    """Measure the digits under both objectives and all loads."""
    workload = Workload("digits", OpenInference(), example_rows("digits", 64))
    run_s = 3.0 if quick else 15.0
    results: dict[str, Any] = {"sla": SLA}
    for objective, policy in OBJECTIVES.items():
        config = json.dumps({"sla": SLA, "policy": policy})
        command = [sys.executable, "-m", SERVERS["bare_uvicorn"].module, "digits", str(PORT)]
        with running([*command, device, config], workload):
            while said()["table"] == "solving":
                time.sleep(0.1)
            under_load(workload, 200.0, run_s, device)
            capacity_per_s = said()["sla_rate_per_s"]
            if capacity_per_s is None:
                say(f"{objective}: the replica found no rate that keeps its SLA")
            results[objective] = {
                str(load): under_load(workload, load * capacity_per_s, run_s, device)
                for load in LOADS
                if capacity_per_s is not None
            }
    return results


def store(device: str, quick: bool) -> dict[str, Any] | None:
    """Measure loads from the model store to the GPU; None without one."""
    if device != "cuda":
        return None
    size_mb = 100 if quick else 5000
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        width = round((size_mb * MB / 4 / 32) ** 0.5)
        network = nn.Sequential(*(nn.Linear(width, width) for _ in range(32)))
        path = publish(folder / "remote", "large", network)
        with manager(folder, host_bytes=3 * size_mb * MB):
            return {"host_to_gpu_fraction": _host_to_gpu_fraction("large", path)}


def _host_to_gpu_fraction(name: str, path: Path) -> float:
    """Return the bandwidth of a load from host memory to the GPU over that of a pinned copy."""
    size_bytes = path.stat().st_size

    def load() -> None:
        load_state_dict(name, device="cuda")
        torch.cuda.synchronize()

    pinned = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)

    def copy() -> None:
        pinned.to("cuda", non_blocking=True)
        torch.cuda.synchronize()

    return min(timed(copy) for _ in range(5)) / min(timed(load) for _ in range(5))


def machine(device: str) -> dict[str, Any]:
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else platform.machine(),
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpus": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
    }


@click.command()
@quick_option("Use a smaller model in the store, and shorter runs.")
@json_option
def main(quick: bool, as_json: bool) -> None:
    """Measure on the GPU, or on the CPU what does not need one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    results: dict[str, Any] = {"quick": quick, "machine": machine(device)}
    for part in (service, store):
        say(f"{part.__name__} on {device} …")
        results[part.__name__] = part(device, quick)
    print_result(results, as_json)


if __name__ == "__main__":
    main()
