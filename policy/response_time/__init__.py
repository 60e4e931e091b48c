"""The response-time distribution of a batching policy.

`evaluation.evaluate` is the entry: it computes control limits exactly, and samples all else.
docs/policy.md derives the equations, whose numbers the modules refer to:

===========================  ===================================================================
`control_limit_chain`        queue lengths at the starts of batches, under a control limit
`control_limit_response`     the response times that follow
`distribution`               response times counted per start of a batch; the cdf, the quantiles
`sample`                     any policy on a sample of arrivals, with an event loop or without
`sample_kernel`              the compiled loop that follows it
`start_lengths`              the exact queue lengths at which the paths of the sample begin
===========================  ===================================================================
"""
