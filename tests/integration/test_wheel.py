"""Sojourn's wheel in an environment of its own, with a user's project and no checkout."""

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import zipfile

import pytest
import yaml

from tests.support.ports import free_port
from tests.support.processes.services import get
from tests.support.readme import ROOT
from tests.support.waiting import LIMIT_S, wait_for

pytestmark = pytest.mark.integration

PACKAGES = ("autoscaler", "deployments", "loadtests", "policy", "sojourn")
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


def build_wheel(folder):
    """Build the wheel from a copy of the source, and check that it has all of it."""
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    for name in (*PACKAGES, "k8s"):
        ignored = shutil.ignore_patterns("__pycache__", ".*", "render.py", "release")
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    files = {str(path.relative_to(source)) for path in source.rglob("*/*") if path.is_file()}
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source)]
    subprocess.run([*PIP, *build], check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    # Weights, templates and what else lies beside the code, and nothing more.
    names = zipfile.ZipFile(wheel).namelist()
    found = {re.sub(r".*\.data/data/share/sojourn/", "", name) for name in names}
    assert {name for name in found if ".dist-info/" not in name} == files - {"k8s/README.md"}
    return wheel


@pytest.fixture(scope="module")
def sojourn(tmp_path_factory):
    """The command, in an environment with the wheel and the packages that it needs."""
    folder = tmp_path_factory.mktemp("wheel")
    wheel, made = build_wheel(folder), folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", made], check=True)
    (site,) = made.glob("lib/python3*/site-packages")
    # A path in such a file is searched, but the checkout that is installed there is not found.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    target = ["--python", str(made / "bin/python")]
    install = ["install", "--no-deps", "--ignore-installed", str(wheel)]
    subprocess.run([*PIP, *target, *install], check=True)
    return made / "bin/sojourn"


@pytest.fixture(scope="module")
def project(sojourn, tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    run(f"{sojourn} init .", sojourn, folder)
    content = yaml.safe_load((folder / "serve.yaml").read_text())
    content["http_options"]["port"] = free_port()
    (folder / "serve.yaml").write_text(yaml.safe_dump(content))
    return folder


def environment(sojourn):
    path = f"{sojourn.parent}{os.pathsep}{os.environ['PATH']}"
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "PATH": path
    }


def run(command, sojourn, folder, status=0):
    ran = subprocess.run(
        command, shell=True, cwd=folder, env=environment(sojourn), capture_output=True, text=True
    )
    assert ran.returncode == status, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


def test_the_commands_of_a_new_projects_readme_work(sojourn, project):
    blocks = re.findall(r"```bash\n(.*?)```", (project / "README.md").read_text(), re.DOTALL)
    (check, serve), (load,), (profile, plan), (package, *_) = (
        block.strip().splitlines() for block in blocks
    )
    where = run(f"python -c 'import sojourn; print(sojourn.__file__)' && {check}", sojourn, project)
    assert str(ROOT) not in where
    assert "serve.yaml is fine: 99% of requests within 100 ms" in where
    port = yaml.safe_load((project / "serve.yaml").read_text())["http_options"]["port"]
    url = f"http://127.0.0.1:{port}"
    log = (project / "log").open("w")
    process = subprocess.Popen(
        serve.split(), cwd=project, env=environment(sojourn), stdout=log, stderr=log
    )
    try:
        started = wait_for(lambda: get(f"{url}/v2/health/ready").status_code == 200, 3 * LIMIT_S)
        assert started, (project / "log").read_text()
        # The machine may be slow; the answers must be right.
        sent = load.partition(" --sla")[0].replace("--duration-s 10", "--duration-s 2")
        assert "wrong answers" in run(f"{sent} --url {url} --min-right 1", sojourn, project)
        assert "sla_in_words" in run(f"sojourn explain --url {url} --json", sojourn, project)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(LIMIT_S)
        log.close()
    assert process.returncode == 0, (project / "log").read_text()
    run(f"{profile} --repeats 5 --no-event-loop", sojourn, project)
    assert "replica" in run(plan, sojourn, project)
    assert "packed model.py" in run(package, sojourn, project)
    packed = project / "dist/serve.yaml"
    packed.write_text(packed.read_text().replace(f"port: {port}", "port: 8000"))
    image = f"registry/mine@sha256:{64 * '0'}"
    render = f"sojourn k8s render --image {image} --config dist/serve.yaml --token web --store"
    assert "kubectl apply -n sojourn -k k8s/overlays/release" in run(render, sojourn, project)
    assert (project / "k8s/components/store/daemonset.yaml").exists()
    assert "1 passed" in run("python -m pytest -q test_model.py", sojourn, project)


def test_a_folder_with_the_name_of_a_package_is_named(sojourn, tmp_path):
    """Whether it hides Sojourn from the command or not."""
    run(f"{sojourn} init .", sojourn, tmp_path)
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "__init__.py").touch()
    for program in ("python -m sojourn.cli", "sojourn"):
        said = run(f"{program} serve serve.yaml", sojourn, tmp_path, status=2)
        assert said.startswith(f"sojourn: {tmp_path / 'policy'} has the name of one of Sojourn's")
        assert said.count("\n") == 1
