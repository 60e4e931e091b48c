"""The workers of a stage: in processes, in threads, or on the event loop.

=============  =================================================================================
`interface`    what a pipeline asks of the workers of a stage
`predictor`    runs the user's code on a batch, and takes the result apart
`processes`    a process for each worker, replaced when it dies or hangs
`child`        the program that such a process runs
`arena`        memory that both processes share, for the items and the results
`in_process`   workers in threads, and on the event loop
=============  =================================================================================
"""
