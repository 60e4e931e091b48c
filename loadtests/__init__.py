"""Load tests of a running service: schedules, Locust users, and the report."""
