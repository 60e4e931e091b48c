import ast
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PACKAGES = ("sojourn", "policy", "autoscaler", "deployments", "loadtests")
ADAPTERS = {
    "autoscaler/ray_adapter.py",
    "autoscaler/ray/metrics.py",
    "autoscaler/ray/store.py",
    "deployments/application.py",
    "deployments/local/cluster.py",
    "deployments/observability/metrics.py",
    "deployments/serving/rand_router.py",
    "deployments/serving/lost_replicas.py",
    "deployments/serving/ray_replica.py",
    "deployments/config/ray_schema.py",
    "deployments/serving/replica.py",
    "deployments/serving/store_actor.py",
    "deployments/pipelines/serving/application.py",
    "deployments/pipelines/serving/stage_replica.py",
}
TESTS_WITH_BENCHMARKS = (
    "tests/benchmarks/",
    "tests/integration/one_ray/test_faults.py",
)


def imported_modules(path):
    """Return the modules that the file imports, including those imported inside functions."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
    return names


@pytest.mark.slow
def test_only_the_adapters_import_ray():
    found = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if any(module.partition(".")[0] == "ray" for module in imported_modules(path))
    }
    assert found == ADAPTERS


@pytest.mark.slow
def test_tests_import_neither_other_tests_nor_benchmarks():
    """Shared helpers live in `tests/support`; tests of the benchmarks import those, of course."""
    found = [
        f"{file}: {module}"
        for path in (ROOT / "tests").rglob("*.py")
        for file in [str(path.relative_to(ROOT))]
        for module in imported_modules(path)
        if (module.startswith("tests.") and not f"{module}.".startswith("tests.support."))
        or (module.startswith("benchmarks") and not file.startswith(TESTS_WITH_BENCHMARKS))
    ]
    assert not found


def test_the_locks_have_what_the_project_admits():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    served, others = _locked("requirements.lock"), _locked("requirements-dev.lock")
    assert not served & others
    assert any(line.startswith("ray[serve]==") for line in project["dependencies"])
    _check_admitted(project["dependencies"], served)
    for name, wanted in extras.items():
        _check_admitted(wanted, served | others if name in ("dev", "docs", "onnx") else served)


def _locked(name):
    lines = [
        Requirement(line) for line in (ROOT / name).read_text().splitlines() if line[:1] != "#"
    ]
    return {(canonicalize_name(line.name), str(line.specifier)[2:]) for line in lines}


def _check_admitted(wanted, lock):
    versions = dict(lock) | {"sojourn": "0.1.0"}
    for line in wanted:
        requirement = Requirement(line)
        assert versions[canonicalize_name(requirement.name)] in requirement.specifier
