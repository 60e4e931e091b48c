"""Autoscalers on virtual time."""
