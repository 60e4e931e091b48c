"""Load tests: Locust users, and the report."""
