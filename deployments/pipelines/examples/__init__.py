"""Example pipelines: handwritten digits in image files, by one model and by an ensemble."""
