"""The device tier: one copy of a model's weights in GPU memory, shared by all processes."""
