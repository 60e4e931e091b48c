import base64
import io
import json
import os
import re
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from deployments.config.document import load_service_configs
from sojourn.cli import COMMANDS, main
from sojourn.project import TEMPLATES
from tests.support.models.doubles_service import serving
from tests.support.readme import ROOT

FILES = ["README.md", "model.py", "serve.yaml", "test_model.py"]
PACKAGES = ("autoscaler", "deployments", "loadtests", "policy", "sojourn")


def test_the_files_are_valid_and_written_once(tmp_path, capsys, monkeypatch, refused):
    monkeypatch.setenv("PATH", "")
    folder = tmp_path / "mine"
    assert main(["init", str(folder)]) == 0
    sojourn = Path(sys.executable).with_name("sojourn")
    assert f"cd {folder} && {sojourn} serve serve.yaml" in capsys.readouterr().err
    assert sorted(path.name for path in folder.iterdir()) == FILES
    config = load_service_configs(folder / "serve.yaml")[0]
    assert config.args.model.import_path == "model:Classifier"
    shown = re.findall(r"^sojourn (\w+)", (folder / "README.md").read_text(), re.MULTILINE)
    assert len(shown) == 7
    assert set(shown) <= set(COMMANDS)
    (folder / "model.py").write_text("mine")
    assert "has README.md, test_model.py, model.py, serve.yaml already" in refused("init", folder)
    assert (folder / "model.py").read_text() == "mine"
    assert "model.py/below: Not a directory" in refused("init", folder / "model.py" / "below")


@pytest.mark.slow
@pytest.mark.parametrize("template", TEMPLATES)
def test_the_project_of_each_template_is_short_and_passes_its_own_test(tmp_path, capsys, template):
    assert main(["init", str(tmp_path), "--template", template]) == 0
    assert f"pip install {TEMPLATES[template]}" in capsys.readouterr().err or template == "torch"
    lines = (tmp_path / "model.py").read_text().splitlines()
    assert len([line for line in lines if line]) < 40
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_model.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    assert "1 passed" in ran.stdout, ran.stdout + ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("template", "name"), [("transformers", "text"), ("image", "image")])
async def test_texts_and_images_come_as_strings_as_base64_and_as_bytes(tmp_path, template, name):
    main(["init", str(tmp_path), "--template", template])
    spec = spec_from_file_location(f"starter_{template}", tmp_path / "model.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.Classifier()
    model.load("cpu")
    content = "good, ä, bad".encode()
    if template == "image":
        file = io.BytesIO()
        Image.effect_noise((40, 30), 64).save(file, "JPEG")
        content = file.getvalue()
    as_text = base64.b64encode(content) if template == "image" else content
    expected = model.forward({name: np.array([content], object)})["scores"][0]
    tensor = {"name": name, "datatype": "BYTES", "shape": [1]}
    raw = len(content).to_bytes(4, "little") + content
    head = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": len(raw)}}]})
    async with serving(model, name="m") as (_, _, port), httpx.AsyncClient() as client:
        url = f"http://127.0.0.1:{port}/v2/models/m/infer"
        answers = [
            await client.post(url, json={"inputs": [{**tensor, "data": [as_text.decode()]}]}),
            await client.post(
                url,
                content=head.encode() + raw,
                headers={"Inference-Header-Content-Length": str(len(head))},
            ),
        ]
        wrong = await client.post(url, json={"inputs": [{**tensor, "data": ["no image"]}]})
    for answer in answers:
        scores = {one["name"]: one["data"] for one in answer.json()["outputs"]}["scores"]
        np.testing.assert_allclose(scores, expected, rtol=1e-5)
    assert (wrong.status_code == 400) == (template == "image")


def test_without_a_config_the_way_on_is_said(tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    assert "write a project with `sojourn init`" in refused("serve")


def test_every_package_is_in_the_wheel():
    pyproject = (ROOT / "pyproject.toml").read_text()
    (include,) = re.findall(r"^include = \[(.*)\]$", pyproject, re.MULTILINE)
    assert sorted(re.findall(r'"(\w+)\*"', include)) == sorted(PACKAGES)
    found = {path.parent.name for path in Path(ROOT).glob("*/__init__.py")}
    assert found - {"benchmarks", "tests"} == set(PACKAGES)
