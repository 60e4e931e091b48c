"""A disk that is full."""

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path

from benchmarks.resilience.run import Run
from benchmarks.resilience.service import Document, Service, serving

#: Enough for Ray's logs while it starts.
_DISK_BYTES = 64 << 20
_BLOCK = b"\0" * 4096
#: The variable that tells the fault where the disk is.
_DISK = "XDG_CACHE_HOME"


@contextmanager
def on_a_small_disk(document: Document) -> Iterator[Service]:
    """Serve with the caches and Ray's logs on a file system of 64 MiB."""
    if os.geteuid() != 0:
        raise SystemExit("only root can mount a small file system")
    # A short path: Ray's sockets are below it.
    with tempfile.TemporaryDirectory(prefix="sj", dir="/tmp") as folder:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES},mode=0700", "sojourn", folder],
            check=True,
        )
        try:
            with serving(document, {_DISK: folder, "RAY_TMPDIR": folder}) as service:
                yield service
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)


def filled(run: Run) -> None:
    """Fill the disk of caches and logs for 15 s, and change the SLA meanwhile."""
    filler = Path(run.service.process.environ()[_DISK]) / "filler"
    run.begin()
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(_BLOCK)
        except OSError:
            run.notes.append(f"{file.tell() >> 20} MiB were free")
        document = deepcopy(run.service.document)
        user_config = document["applications"][0]["deployments"][0]["user_config"]
        user_config["sla"]["percentile"] = 98.0
        run.service.deploy(document)
        time.sleep(15)
    filler.unlink()
    run.service.deploy(run.service.document)
    run.service.wait_for_tables()
    time.sleep(5)
