"""The workers of a stage: in processes, in threads, on the event loop, or Ray replicas.

==============  ================================================================================
`worker`        what a worker is, and how batches get to the workers of a stage
`pool`          the workers that a pipeline starts itself, and replaces when they die or hang
`in_process`    a worker in a thread, and on the event loop
`processes`     a worker in a process; `child` is the program that the process runs
`replicas`      Ray replicas; `batch_server` is what a replica does
`link`          the connection to another process, `arena` the memory that both share
`predictor`     runs the user's code on a batch, and takes the result apart
==============  ================================================================================
"""
