"""The response-time distribution of a batching policy, computed without simulation.

`evaluation.evaluate` is the entry. docs/response_times.md derives the equations, whose numbers the
modules refer to:

===========================  ===================================================================
`queue_system`               the device and its queue; what every embedded chain shares
`control_limit_chain`        queue lengths at the starts of batches, under a control limit
`control_limit_response`     the response times that follow
`random_chain`               queue lengths at the starts of batches, where batch times vary
`random_response`            the response times that follow
`table_chain`                queue lengths at the starts of batches, under any table of actions
`table_requests`             requests under such a table, from batch end to batch end
`table_response`, `waits`    the response times that follow
`age_grid`                   requests by age on a grid, where a table splits batches in many ways
`distribution`               response times counted per start of a batch; the cdf, the quantiles
`quadrature`                 densities that jump, integrated
===========================  ===================================================================
"""
