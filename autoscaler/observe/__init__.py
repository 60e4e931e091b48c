"""Observe a fleet from the reports of its replicas: the offered load, backlogs, start times."""
