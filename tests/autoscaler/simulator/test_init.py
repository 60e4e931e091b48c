"""The names that users import from `simulator`."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from autoscaler import simulator

ROOT = Path(__file__).parents[3]


def test_every_name_is_that_of_its_module() -> None:
    assert sorted(simulator.__all__) == sorted(simulator._MODULES)
    for name in simulator.__all__:
        value = getattr(simulator, name)
        module = getattr(value, "__module__", simulator._MODULES[name])
        assert module == simulator._MODULES[name], name
        assert name in dir(simulator)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'fleet_of_ships'"):
        _ = simulator.fleet_of_ships


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "absent"),
    [("*", {"ray", "torch"}), ("load_trace", {"ray", "torch", "numba", "matplotlib", "scipy"})],
)
def test_a_name_is_imported_without_what_it_does_not_need(names: str, absent: set[str]) -> None:
    code = f"from autoscaler.simulator import {names}; import sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    imported = {module.partition(".")[0] for module in done.stdout.split()}
    assert not imported & absent


@pytest.mark.slow
def test_the_example_of_the_documentation_needs_one_import_and_runs(monkeypatch, capsys) -> None:
    monkeypatch.chdir(ROOT)
    text = (ROOT / "docs/load_tests.md").read_text()
    (source,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(re.findall(r"^(?:from|import) ", source, flags=re.MULTILINE)) == 1
    exec(source, {})
    service_level, _, paid_replica_s = map(float, capsys.readouterr().out.split())
    assert 0.9 < service_level <= 1
    assert 3501 < paid_replica_s < 20 * 3501
