"""The solvers behind `policy.solve`.

================  ==============================================================================
`exact`           weights: policy iteration over queues of any length (`closed_chain` has the
                  equations)
`constrained`     a service level: a search over control limits and max waits
`reference`       weights: the paper's truncated queue, for comparison
================  ==============================================================================
"""
