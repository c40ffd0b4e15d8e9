"""The cluster engine: each worker and shard of a run is a process, on one machine or many.

    launch               starts the processes of a run
    launched_run         the handle of the process that started the run; coordinator_watch polls the coordinator,
                         silence interprets a missing answer, outcome records how the run ended
    coordinator_process  the run itself: accounts, evaluation, checkpoints
    ray_engine           the engine of its training; session holds the coordinator's parts while processes train,
                         training_loop is its work between two messages
    worker_process       a worker: reads its leases, pulls, computes, pushes
    shard_process        a shard: loads its part of a snapshot, serves it, writes its part of the next
    process_context      what every process of a run knows: the recipe of the model, the run folder, how to connect
    shared_folder        the run folder as its processes share it; process_records: their starts and ends
    connection           endpoints of processes, and the largest messages
    process_manager      the interface for starting and ending processes (actors/supervisor implements it)
    snapshots            the parts of a snapshot on disk, and how they become a checkpoint that every engine reads
    all_reduce           the process group in which workers sum dense gradients
    remote_rows          the coordinator's view of parameters that the shards hold; shard_questions asks for them
    local_cluster        a Ray cluster on this machine for one run
    actors/              the Ray actors; the only package that imports Ray

The protocol's state machines are in engine/protocol, their transport in engine/wire.
"""
