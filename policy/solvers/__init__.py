"""The solvers behind `policy.solve`.

================  ==============================================================================
`exact`           weights: policy iteration over queues of any length (`closed_chain` has the
                  equations)
`constrained`     a service level: a search over control limits and max waits
`tandem`          weights, with an event loop beside the device: a search over control limits
`reference`       weights: the paper's truncated queue, for comparison
================  ==============================================================================
"""
