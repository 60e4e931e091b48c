"""Stands in for `deployments.local.cluster`: no Ray, but processes that are as hard to end.

The environment variable ``CLUSTER`` says what it does: one of the words below, or several.
"""

import json
import os
import signal
import subprocess
import sys
import time

_SLEEPER = (
    "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(600)"
)


def main() -> None:
    """Read the request, answer it, and end at the end of the input, unless told otherwise."""
    words = os.environ["CLUSTER"].split()
    request = json.loads(sys.stdin.readline())
    if "orphan" in words:
        # A process whose parent ends, in a session of its own, that ignores SIGTERM.
        start = (
            "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]],"
            " start_new_session=True, stdout=subprocess.PIPE).stdout.readline()"
        )
        subprocess.run([sys.executable, "-c", start, _SLEEPER], check=True)
    if "prints" in words:
        sys.stderr.write("(ServeReplica:digits:Replica pid=7) hello\n")
        sys.stderr.flush()
    names = [application["model"] for application in request["applications"]]
    answer({"step": f"deploying {', '.join(names)}"})
    if "fails" in words:
        answer({"error": "the model did not start: no weights"})
        return
    if "dies" in words:
        sys.stderr.write("a trace\nout of memory\n\n")
        return
    if "starts-for-ever" in words:
        time.sleep(600)
    answer({"dashboard": "http://127.0.0.1:1", "metrics_url": "http://127.0.0.1:2/metrics"})
    if "deploys" in words:
        answer({"step": "the deployment of digits failed: no weights"})
    if "crashes" in words:
        os.kill(os.getpid(), signal.SIGKILL)
    sys.stdin.read()
    if "hangs" in words:
        time.sleep(600)


def answer(content: dict[str, str]) -> None:
    """Write one line of JSON."""
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
