"""What the packages of `deployments` export, and what importing them loads."""

import importlib

import pytest

EXPORTED = {
    "deployments.http": ["InferenceApp", "InferenceRequest", "Service", "Signature"],
    "deployments.models": ["MODELS", "Model", "TensorSpec", "load_model"],
    "deployments.profiling": ["EnergyMeter", "best_meter", "measure_profile"],
}


@pytest.mark.parametrize("package", EXPORTED)
def test_a_package_exports_its_names(package):
    module = importlib.import_module(package)
    assert module.__all__ == EXPORTED[package]
    assert all(hasattr(module, name) for name in EXPORTED[package])
