"""Measure the profile of a model on a device: time and energy by batch size."""

from deployments.models.base import EnergyMeter
from deployments.profiling.energy import best_meter
from deployments.profiling.measure import measure_profile

__all__ = ["EnergyMeter", "best_meter", "measure_profile"]
