"""Dense replicas of trainers, and how they are merged. No threads, no network, no clock.

    arithmetic   the vector operations of an exchange: centre step, global step, merges
    moments      the local rules of k-step Adam, and which state a merge averages
    replica      one trainer's dense weights, optimizer state and counts
    common_model what replicas exchange with and an evaluation sees: the centre, or the global model
    group        the replicas of one process: forked from the server, stepped, merged, folded back
    figures      counts of exchanges: gap, share in flight, bytes

Engines carry this out: in memory with threads (engine/live_replicas.py), in virtual time (engine/simulation), or over
a network, where only `centre_step`, `GlobalStep` and `Phase` run elsewhere.
"""
