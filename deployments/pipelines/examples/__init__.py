"""Pipelines to try and to copy: the article's, handwritten digits in PNG files, and an ensemble."""
