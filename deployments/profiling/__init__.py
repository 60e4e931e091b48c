"""Measure the profile of a model on a device: time and energy by batch size."""
