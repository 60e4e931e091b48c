"""Measurements in the simulator."""
