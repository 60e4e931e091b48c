"""Decide how many replicas keep a service-level agreement (SLA) on response times.

Nothing here needs Ray, except `ray_adapter`, the policy for Ray Serve, and `autoscaler.ray`.
"""
