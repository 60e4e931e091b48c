"""A pipeline as a service: its config file, its HTTP interface, and its Ray Serve application.

===============  ===============================================================================
`config`         the config file, checked; `step_config` the steps in it
`service`        the pipeline as the service of `deployments.http.app`
`app`            the HTTP interface: that of a model, and `/sojourn/pipeline`
`metrics`        the metrics of the stages
`planning`       the console's what-if, which `pipeline_plan` answers
`server`         under uvicorn, without Ray
`application`    the Ray Serve application, and the deployment of the pipeline
`stage_replica`  the Ray Serve deployment of one stage
`ray_scaling`    how many replicas of both there are
===============  ===============================================================================
"""
