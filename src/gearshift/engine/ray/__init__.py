"""A run whose workers and shards are processes of their own, on one machine or many.

    engine/ray/process_context.py          what every process of a run knows: how to build the model, where the run's folder is, how they talk
    work.py          a worker: reads its leases, pulls, computes, gives
    ring.py          its end of a ring: the process group in which workers sum dense gradients
    engine/ray/shard_process.py         a shard: loads its part of a snapshot, serves, writes its part of the next
    engine/ray/snapshots.py     parts of snapshots on disk, and how they become a checkpoint that every engine reads
    engine/ray/coordinator_process.py    the run itself: books, evaluation, checkpoints, in the coordinator's process
    engine/ray/remote_rows.py     what the coordinator sees of the shards' rows
    engine/ray/launch.py        from where the run was started: starts the processes, and shows what they tell

The roles that talk are in engine/roles, the wire in engine/wire, the processes are placed and started anew by Ray
(engine/ray_cluster). Nothing here imports Ray.
"""
