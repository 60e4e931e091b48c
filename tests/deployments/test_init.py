"""What the packages of `deployments` export, and what importing them loads."""

import importlib
import subprocess
import sys

import pytest

EXPORTED = {
    "deployments.http": ["InferenceApp", "InferenceRequest", "Service", "Signature"],
    "deployments.models": ["MODELS", "Model", "TensorSpec", "load_model"],
    "deployments.profiling": ["EnergyMeter", "best_meter", "measure_profile"],
}


@pytest.mark.parametrize("package", EXPORTED)
def test_a_package_exports_its_names(package: str) -> None:
    module = importlib.import_module(package)
    assert module.__all__ == EXPORTED[package]
    assert all(hasattr(module, name) for name in EXPORTED[package])


@pytest.mark.slow
def test_the_packages_load_neither_ray_nor_torch() -> None:
    script = (
        f"import sys; import {', '.join(EXPORTED)}; print({{'ray', 'torch'}} & set(sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert result.stdout == "set()\n"
