"""Models: what a model is, the digits model, and the emulated device."""
