"""What all tests share: Hypothesis finds the same examples in every run, and stays quiet."""

from hypothesis import settings

settings.register_profile("sojourn", derandomize=True, deadline=None, database=None)
settings.load_profile("sojourn")
