"""A pipeline as a service: its config file, its HTTP interface, and its Ray Serve application.

===============  ===============================================================================
`config`         the config file, checked
`step_config`    the steps that it describes
`service`        the pipeline as the service of `deployments.http.app`
`app`            the HTTP interface: that of a model, `/sojourn/pipeline`, and times per stage
`metrics`        the metrics of the stages; `ray_metrics` passes them to Ray
`server`         under uvicorn, without Ray
`replica`        the Ray Serve deployment; `application` builds it
`stage_replica`  the Ray Serve deployment of one stage
`ray_scaling`    how many replicas of both there are
===============  ===============================================================================
"""
