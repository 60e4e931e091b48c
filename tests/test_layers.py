import ast
import tomllib
from pathlib import Path

import pytest

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


def imported_modules(path: Path) -> set[str]:
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


def test_the_pins_of_the_project_agree_with_its_locks():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    served, others = _locked("requirements.lock"), _locked("requirements-dev.lock")
    assert not served & others
    _check_pins(project["dependencies"], served)
    for name, wanted in extras.items():
        is_served = name in ("images", "loadtest", "tracing")
        _check_pins(wanted, served if is_served else served | others)


def _locked(name: str) -> set[str]:
    lines = (ROOT / name).read_text().lower().replace("_", "-").splitlines()
    return {line for line in lines if not line.startswith("#")}


def _check_pins(wanted: list[str], lock: set[str]) -> None:
    for requirement in wanted:
        name, equals, version = requirement.partition("==")
        assert equals, f"{requirement} is not pinned exactly"
        plain = name.partition("[")[0].lower().replace("_", "-")
        assert f"{plain}=={version}" in lock, f"{requirement} is not locked"
