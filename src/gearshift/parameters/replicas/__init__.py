"""Dense replicas of trainers and how they are brought together; no thread, no network, no clock.

    arithmetic   what an exchange does to vectors: the centre's step, the global step, the merges
    moments      the local rules of k-step Adam, and what of their state a merge averages
    replica      one trainer's dense weights, optimizer state and counts
    meeting      several replicas in one memory meet; what is forked from the servers and folded back
    figures      what exchanges came to: gap, share in flight, bytes

Engines bring these together: over memory and threads (`engine/shadow_threads.py`), in virtual time (`gearshift.engine.simulation.learning`), or
over a network, for which `centre_step`, `GlobalStep` and `Phase` are all that has to be carried out elsewhere.
"""
