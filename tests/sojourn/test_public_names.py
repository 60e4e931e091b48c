import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sojourn

ROOT = Path(__file__).parents[2]


def test_every_public_name_can_be_imported_and_is_documented():
    for name in sojourn.__all__:
        assert getattr(sojourn, name).__name__ == name
        public = getattr(sojourn, name)
        members = vars(public).items() if inspect.isclass(public) else ()
        for member, value in [(name, public), *members]:
            if not member.startswith("_") and (callable(value) or isinstance(value, property)):
                assert inspect.getdoc(value), f"{name}: {member}"
    assert dir(sojourn) == sojourn.__all__


@pytest.mark.slow
def test_names_are_imported_when_they_are_used():
    program = (
        "import sys, sojourn\n"
        "heavy = {'numpy', 'scipy', 'numba', 'ray', 'torch', 'matplotlib', 'click'}\n"
        "assert not heavy & sys.modules.keys()\n"
        "from sojourn import Model, TensorSpec, RowsError, Profile, Weights\n"
        "assert not (heavy - {'numpy'}) & sys.modules.keys()\n"
        "use_torch = {'load_state_dict', 'shared_weights'}\n"
        "for name in set(sojourn.__all__) - use_torch: getattr(sojourn, name)\n"
        "assert not {'ray', 'torch', 'matplotlib'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.slow
def test_no_command_imports_what_it_may_not_need():
    """A command says what is wrong within a second, and decides without torch, Ray or Locust."""
    program = (
        "import sys\n"
        "from sojourn.commands import loadtest, plan, simulate, solve, store\n"
        "from deployments import http, models, pipelines, profiling\n"
        "print(*{'torch', 'ray', 'matplotlib', 'gevent', 'locust'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr


@pytest.mark.slow
def test_the_simulators_example_of_the_documentation_runs(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    text = (ROOT / "docs/load_tests.md").read_text()
    (source,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    exec(source, {})
    service_level, _, paid_replica_s = map(float, capsys.readouterr().out.split())
    assert 0.9 < service_level <= 1
    assert 3501 < paid_replica_s < 20 * 3501
