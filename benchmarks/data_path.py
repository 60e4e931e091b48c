"""How many requests per second the HTTP path carries, beside Ray Serve alone.

The digits model, one replica each, one image per request, `wrk -t1 -c64`, all in turn and several
times over; the ratio is what counts, for machines differ and are noisy. Ray Serve runs as it comes,
and once more with room for full batches (`max_ongoing_requests`)::

    python -m benchmarks.data_path [--quick] [--json]

Needs `wrk` (on Debian: apt-get install wrk).
"""

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
PORT = 8123


@contextmanager
def sojourn() -> Iterator[str]:
    """Serve configs/digits.yaml with `sojourn serve`, one replica."""
    document = yaml.safe_load((ROOT / "configs/digits.yaml").read_text())
    document["applications"][0]["deployments"][0]["autoscaling_config"]["max_replicas"] = 1
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config:
        yaml.safe_dump(document, config)
        config.flush()
        command = [sys.executable, "-m", "sojourn.cli", "serve", config.name, "--port", str(PORT)]
        process = subprocess.Popen(
            [*command, "--json"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        try:
            assert process.stdout is not None
            while process.stdout.readline().strip() != b"}":
                if process.poll() is not None:
                    raise SystemExit("sojourn serve did not come up; run it by hand to see why")
            yield f"http://127.0.0.1:{PORT}/v2/models/digits/infer"
        finally:
            process.terminate()
            process.wait(60)


@contextmanager
def plain_serve(max_ongoing_requests: int) -> Iterator[str]:
    """Serve the same model with Ray Serve alone."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.plain_serve", str(PORT), str(max_ongoing_requests)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        while process.stdout.readline().strip() != b"ready":
            if process.poll() is not None:
                raise SystemExit("plain Ray Serve did not come up")
        yield f"http://127.0.0.1:{PORT}/"
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(60)


def wrk(url: str, body: str, connections: int, duration_s: int) -> dict[str, float]:
    """Load `url` and give requests per second, p50 and p99 in ms, and the failed share."""
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(
            f'wrk.method = "POST"\nwrk.body = [[{body}]]\n'
            'wrk.headers["Content-Type"] = "application/json"\n'
            "done = function(summary, latency)\n"
            '  io.write(string.format("RESULT %d %d %d %d %d\\n", summary.requests,\n'
            "    summary.duration, summary.errors.status, latency:percentile(50),\n"
            "    latency:percentile(99)))\nend\n"
        )
        script.flush()
        options = ["-t1", f"-c{connections}", f"-d{duration_s}s", "-s", script.name]
        output = subprocess.run(
            ["wrk", *options, url], capture_output=True, text=True, check=True
        ).stdout
    found = re.search(r"RESULT (\d+) (\d+) (\d+) (\d+) (\d+)", output)
    assert found is not None, output
    requests, duration_us, failed, p50_us, p99_us = map(int, found.groups())
    return {
        "requests_per_s": 1e6 * requests / duration_us,
        "p50_ms": 1e-3 * p50_us,
        "p99_ms": 1e-3 * p99_us,
        "failed_fraction": failed / max(1, requests),
    }


def example_body() -> str:
    """One digit as an Open Inference Protocol request."""
    image = [0, 0, 5, 13, 9, 1, 0, 0, 0, 0, 13, 15, 10, 15, 5, 0]
    tensor = {"name": "image", "datatype": "FP32", "shape": [1, 8, 8], "data": image * 4}
    return json.dumps({"inputs": [tensor]})


def main() -> None:
    """Run all in turn and print what they carried."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    if shutil.which("wrk") is None:
        raise SystemExit("wrk is not installed (on Debian: apt-get install wrk)")
    rounds, duration_s = (1, 8) if options.quick else (3, 15)
    services: dict[str, Callable[[], AbstractContextManager[str]]] = {
        "sojourn": sojourn,
        "ray_serve": partial(plain_serve, 5),
        "ray_serve_tuned": partial(plain_serve, 256),
    }
    results: dict[str, list[dict[str, float]]] = {name: [] for name in services}
    for _ in range(rounds):
        for name, service in services.items():
            with service() as url:
                request = urllib.request.Request(
                    url, example_body().encode(), {"Content-Type": "application/json"}
                )
                with urllib.request.urlopen(request, timeout=10) as answer:
                    assert "label" in answer.read().decode()
                wrk(url, example_body(), 64, 3)
                results[name].append(wrk(url, example_body(), 64, duration_s))
            time.sleep(1)
    medians = {
        name: {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        for name, runs in results.items()
    }
    ours = medians["sojourn"]["requests_per_s"]
    ratios = {name: ours / values["requests_per_s"] for name, values in medians.items()}
    if options.json:
        rates = {name: values["requests_per_s"] for name, values in medians.items()}
        print(json.dumps({"requests_per_s": rates, "ratios": ratios, "runs": results}, indent=1))
        return
    print(f"{'':16}{'req/s':>9}{'p50 ms':>9}{'p99 ms':>9}{'failed':>9}{'ratio':>9}")
    for name, values in medians.items():
        print(
            f"{name:16}{values['requests_per_s']:9.0f}{values['p50_ms']:9.1f}"
            f"{values['p99_ms']:9.1f}{values['failed_fraction']:9.1%}"
            f"{ratios[name]:9.1f}"
        )


if __name__ == "__main__":
    main()
