"""Example pipelines: the article's, handwritten digits in PNG files, and an ensemble."""
