import subprocess
import sys

import pytest

import autoscaler


def test_every_exported_name_can_be_imported():
    assert set(autoscaler.__all__) == autoscaler._MODULES.keys()
    for name in autoscaler.__all__:
        assert getattr(autoscaler, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(autoscaler, "Oracle")


@pytest.mark.slow
def test_the_package_imports_neither_ray_nor_torch_nor_anything_unused():
    program = (
        "import sys, autoscaler\n"
        "assert not {'numpy', 'scipy'} & sys.modules.keys()\n"
        "for name in autoscaler.__all__: getattr(autoscaler, name)\n"
        "assert not {'ray', 'torch', 'matplotlib'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
