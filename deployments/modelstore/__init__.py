"""One copy of a model's weights per machine, shared by all of its processes."""
