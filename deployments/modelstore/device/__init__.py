"""The device tier: one copy of a model's weights in a GPU's memory, which processes share."""
