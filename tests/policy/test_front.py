"""The front of the package: its names, and what importing them costs."""

import subprocess
import sys

import pytest

import policy


@pytest.mark.parametrize("name", policy.__all__)
def test_every_name_is_there_and_the_one_of_its_module(name):
    found = getattr(policy, name)
    assert found.__name__ == name
    assert found.__module__.startswith("policy.")


def test_the_names_are_sorted_and_listed():
    assert list(policy.__all__) == sorted(policy.__all__)
    assert dir(policy) == sorted(policy.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'solution_of_everything'"):
        _ = policy.solution_of_everything


def test_it_imports_neither_ray_nor_torch_nor_matplotlib():
    program = (
        "import sys; from policy import *\n"
        "sys.exit(str({'ray', 'torch', 'matplotlib'} & set(sys.modules) or '') or 0)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_errors_are_imported_without_scipy():
    program = "import sys, policy.errors; sys.exit('scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
