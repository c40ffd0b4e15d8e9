"""Dense replicas of trainers, and how they are brought together; no thread, no network, no clock.

    arithmetic   what an exchange does to vectors: the centre's step, the global step, the merges
    moments      the local rules of k-step Adam, and what of their state a merge averages
    replica      one trainer's dense weights, optimizer state and counts
    group        the replicas of one process: forked from the server, stepped, merged, folded back
    figures      counts of exchanges: gap, share in flight, bytes

Engines carry this out: in memory with threads (engine/shadow_threads.py), in virtual time (engine/simulation), or over
a network, where only `centre_step`, `GlobalStep` and `Phase` run elsewhere.
"""
