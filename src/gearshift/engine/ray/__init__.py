"""The cluster engine: the workers and shards of a run are processes of their own, on one machine or many.

    launch               where the run was started: starts the processes and shows their messages
    coordinator_process  the run itself: accounts, evaluation, checkpoints
    worker_process       a worker: reads its leases, pulls, computes, pushes
    shard_process        a shard: loads its part of a snapshot, serves it, writes its part of the next
    process_context      what every process of a run knows: the recipe of the model, the run folder, how to connect
    snapshots            the parts of a snapshot on disk, and how they become a checkpoint that every engine reads
    all_reduce           the process group in which workers sum dense gradients
    remote_rows          the coordinator's view of rows that the shards hold
    local_cluster        a Ray cluster on this machine for one run
    actors/              what Ray runs; the only package that imports Ray

The message machines are in engine/protocol, their transport in engine/wire.
"""
