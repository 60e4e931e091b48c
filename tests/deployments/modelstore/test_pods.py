import os
import shutil
import subprocess
import sys

import pytest

from tests.support.models.model_stores import manager_thread, settings_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.getuid() != 0 or shutil.which("unshare") is None, reason="takes root"),
]

#: Mount the store's folder as a pod does, read-only, and hide where it and its files are.
POD = """
set -e
mkdir -p "$2"
mount --bind "$1" "$2"
mount -o remount,bind,ro "$2"
mount -t tmpfs tmpfs "$3"
shift 3
exec "$@"
"""
PROGRAM = """
import os, sys
import torch
from safetensors.torch import load_file, save_file
import sojourn
from deployments.modelstore.errors import StoreError
run, own, hidden = sys.argv[1:]
assert not os.listdir(hidden)
save_file({"w": torch.arange(1000.0)}, f"{hidden}/w.safetensors")
assert not os.access(run, os.W_OK)
with sojourn.shared_weights(f"{run}/store.sock") as sharing:
    assert load_file(f"{hidden}/w.safetensors")["w"].sum() == 499500
print(sharing.found_in)
os.setuid(65534)
try:
    with sojourn.shared_weights(f"{run}/store.sock"):
        pass
except StoreError as error:
    print(error)
"""


def test_pods_share_what_the_same_file_in_each_contains_and_other_users_nothing(tmp_path):
    run, hidden = tmp_path / "store" / "run", tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "of the node").touch()
    settings = settings_for(tmp_path, remote=None, socket=run / "store.sock")
    found = []
    with manager_thread(settings):
        for pod in range(2):
            seen = tmp_path / f"pod-{pod}"
            namespaces = ["unshare", "--mount", "--net", "bash", "-c", POD, "pod"]
            program = [sys.executable, "-c", PROGRAM, seen, run, hidden]
            done = subprocess.run(
                [*namespaces, run, seen, hidden, *program],
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stderr
            tier, refused = done.stdout.splitlines()
            found.append(tier)
            assert "Permission denied" in refused
    assert found == ["file", "host"]
