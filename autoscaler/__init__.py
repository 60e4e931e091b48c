"""Decide how many replicas keep a service-level agreement (SLA) on response times.

`controller.Autoscaler` turns the replicas' reports into decisions; `sizing.search.least_replicas`
sizes a fleet for a known load. Nothing here needs Ray, except `ray_adapter`, the policy for Ray
Serve.
"""
