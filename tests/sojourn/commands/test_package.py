import asyncio
import subprocess
import sys
import urllib.request
import zlib
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
import yaml
from ray._private.runtime_env.packaging import download_and_unpack_package

from deployments.config.serve_schema import ApplicationEntry
from sojourn.cli import main
from tests.support.readme import ROOT

MODEL = """
import pathlib
import numpy as np
from sojourn import Model, TensorSpec
from text.hashing import buckets

class Tickets(Model):
    inputs = (TensorSpec("text", "BYTES"),)
    outputs = (TensorSpec("score", "FP32"),)

    def __init__(self, weights="weights.npy"):
        self._weights_path = weights

    def load(self, device):
        self._weights = np.load(self._weights_path)

    def forward(self, batch):
        return {"score": self._weights[buckets(batch["text"])]}
"""
HASHING = """
import zlib
import numpy as np

def buckets(texts):
    return np.array([zlib.crc32(text) % 8 for text in texts])
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A user's folder: a model, a package that it imports, its weights, a config, and more."""
    folder = tmp_path / "my models"
    (folder / "text").mkdir(parents=True)
    (folder / ".cache").mkdir()
    (folder / "tickets.py").write_text(MODEL)
    (folder / "text/__init__.py").write_text(
        "import os\nif os.path.exists('.cache/note'):\n    open('.cache/note').close()\n"
    )
    (folder / "text/hashing.py").write_text(HASHING)
    (folder / ".cache/note").write_text("hidden")
    np.save(folder / "weights.npy", np.arange(8, dtype=np.float32))
    (folder / "unused.csv").write_text("not read")
    document = yaml.safe_load((ROOT / "configs/digits.yaml").read_text())
    document["applications"][0]["args"]["model"] = {
        "name": "tickets",
        "import_path": "tickets:Tickets",
    }
    (folder / "my.yaml").write_text(yaml.safe_dump(document))
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def packed(as_json):
    return partial(as_json, "package", "my.yaml")


@pytest.fixture
def unpacked(refused):
    return partial(refused, "package", "my.yaml")


@pytest.mark.slow
def test_the_package_has_what_the_model_reads_and_ray_unpacks_it(
    folder, tmp_path, packed, refused, capsys, monkeypatch
):
    shown = packed()
    assert shown["files"] == ["text/__init__.py", "text/hashing.py", "tickets.py", "weights.npy"]
    (application,) = yaml.safe_load(Path(shown["config"]).read_text())["applications"]
    url = application["runtime_env"]["working_dir"]
    assert url == shown["uri"]
    assert urlsplit(url).scheme == "file"
    assert set(application) <= set(ApplicationEntry.model_fields)
    # Ray's own code stands for a node of the cluster.
    target = tmp_path / "node"
    target.mkdir()
    node = Path(asyncio.run(download_and_unpack_package(url, str(target))))
    files = [path for path in sorted(node.rglob("*")) if path.is_file()]
    assert [str(path.relative_to(node)) for path in files] == shown["files"]
    assert all(
        path.read_bytes() == (folder / path.relative_to(node)).read_bytes() for path in files
    )
    # The model serves there, and the written config is checked from anywhere.
    answer = subprocess.run(
        [
            *(sys.executable, "-c"),
            "from deployments.models.loading import load_model; import numpy as np;"
            "model = load_model('tickets:Tickets', {}, 'cpu');"
            "print(model.forward({'text': np.array([b'a', b'b'], object)})['score'].tolist())",
        ],
        cwd=node,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert answer == f"{[float(zlib.crc32(text) % 8) for text in (b'a', b'b')]}\n"
    monkeypatch.chdir(tmp_path)
    assert main(["serve", "--check", str(folder / "dist/my.yaml")]) == 0
    assert "is fine" in capsys.readouterr().err
    wrong_folder = refused("serve", "--check", folder / "my.yaml")
    assert f"it is next to my.yaml: run this in {folder}" in wrong_folder
    Path(urllib.request.url2pathname(urlsplit(url).path)).unlink()
    no_package = refused("serve", "--check", folder / "dist/my.yaml")
    assert "runtime_env.working_dir: file://" in no_package


@pytest.mark.slow
def test_the_same_files_make_the_same_package_and_others_another(folder, packed):
    first = packed("--no-load", "--include", "weights.npy")
    config = (folder / "my.yaml").read_text()
    (folder / "my.yaml").write_text(config.replace("response_time_ms: 100", "response_time_ms: 50"))
    (folder / "weights.npy").touch()
    again = packed("--no-load", "--include", "weights.npy", "--url", "s3://bucket/models/")
    assert Path(again["package"]).name == Path(first["package"]).name
    assert again["uri"] == f"s3://bucket/models/{Path(first['package']).name}"
    (folder / "tickets.py").write_text(f"{MODEL}\n# changed")
    other = packed("--no-load", "--include", "weights.npy")
    assert other["uri"] != first["uri"]


@pytest.mark.slow
def test_what_a_package_alone_lacks_is_told(folder, packed, unpacked):
    # As a library that reads files by itself: no event of Python's tells of it.
    reads = "pathlib.Path('weights.npy').stat() and np.zeros(8)"
    (folder / "tickets.py").write_text(MODEL.replace("np.load(self._weights_path)", reads))
    error = unpacked()
    assert "the package alone is not enough; add files with --include: " in error
    assert "No such file or directory: 'weights.npy'" in error
    assert not list((folder / "dist").iterdir())
    assert "weights.npy" in packed("--include", "weights.npy")["files"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('weights="weights', 'weights="{folder}/weights', "a path that only this machine has"),
        ("import numpy", "raise SystemExit(3)\nimport numpy", "ended its process with status 3"),
        ("np.load(", "np.loadd(", "failed to load: AttributeError"),
    ],
)
def test_a_model_that_does_not_load_elsewhere(folder, unpacked, old, new, said):
    changed = MODEL.replace(old, new.replace("{folder}", str(folder)))
    (folder / "tickets.py").write_text(changed)
    assert said in unpacked()


@pytest.mark.slow
def test_a_model_that_is_installed_needs_no_package(folder, unpacked):
    (folder / "my.yaml").write_text((ROOT / "configs/emulated-p4.yaml").read_text())
    assert "none of its models is in this folder" in unpacked()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--url", "ftp://x"], "--url: must begin with file://, http://"),
        (["--out", "."], "has my.yaml itself; choose another folder"),
        (["--out", "taken"], "--out: taken/my.yaml is a folder; choose another one"),
        (["--no-load", "--include", "../outside.txt"], "--include: ../outside.txt must be in this"),
        (["--no-load", "--include", "text/../.."], "--include: text/../.. must be in this folder"),
    ],
)
def test_options_that_are_wrong(folder, unpacked, arguments, said):
    (folder / "taken/my.yaml").mkdir(parents=True)
    (folder.parent / "outside.txt").write_text("another's")
    assert said in unpacked(*arguments)


@pytest.mark.slow
def test_links_are_packed_as_what_they_lead_to(folder, packed):
    (folder.parent / "outside.txt").write_text("mine")
    (folder / "link.txt").symlink_to("../outside.txt")
    assert "link.txt" in packed("--no-load", "--include", "text/../link.txt")["files"]


@pytest.mark.slow
def test_only_the_applications_of_the_folder_run_in_the_package(folder, packed):
    document = yaml.safe_load((folder / "my.yaml").read_text())
    document["applications"][0]["runtime_env"] = {"env_vars": {"A": "1"}}
    (installed,) = yaml.safe_load((ROOT / "configs/emulated-p4.yaml").read_text())["applications"]
    document["applications"].append({**installed, "route_prefix": "/installed"})
    (folder / "my.yaml").write_text(yaml.safe_dump(document))
    shown = packed("--no-load")
    mine, other = yaml.safe_load(Path(shown["config"]).read_text())["applications"]
    assert mine["runtime_env"] == {"env_vars": {"A": "1"}, "working_dir": shown["uri"]}
    assert "runtime_env" not in other


def test_a_config_with_a_package_is_not_packed_again(folder, unpacked):
    document = yaml.safe_load((folder / "my.yaml").read_text())
    document["applications"][0]["runtime_env"] = {"working_dir": "file:///m.zip"}
    (folder / "my.yaml").write_text(yaml.safe_dump(document))
    assert "applications.0.runtime_env.working_dir: is set already" in unpacked()
