"""Faults and strangers against a real service under load: what is lost, and for how long."""
