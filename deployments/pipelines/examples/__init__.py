"""An example pipeline: handwritten digits in image files."""
