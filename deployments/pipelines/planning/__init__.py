"""Predict a pipeline's response time, and the workers that its SLA needs."""
