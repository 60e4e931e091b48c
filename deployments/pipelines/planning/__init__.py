"""Predict a pipeline's response time, and the workers that its SLA needs.

===============  ===============================================================================
`tandem`         the response times of the whole, from a compiled simulation of its stages
`sizing`         the workers of least cost, and the division of the response time among the stages
`scaling`        the same for all rates ahead, and when a running pipeline changes
`profiling`      the time of each stage's batches, measured
===============  ===============================================================================
"""
