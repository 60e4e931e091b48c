"""Forecast the demand that replicas must cover until one ordered now can serve."""
