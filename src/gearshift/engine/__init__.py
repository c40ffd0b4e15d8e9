"""Engines: who runs the workers. Each drives the same coordinator, so that all give the same accounts.

epoch           one epoch's leases from supply to end: the coordinator decides, the server applies, the host is told
feed            batches for leases, in order
inline          one worker, in the caller's own thread
threads         several workers, a thread each, in this process
cluster_model   what a cluster is: speeds, stragglers, failures, network; plain values
durations       how long a worker's n-th batch takes, drawn from the model
mirror          the dense part as a worker holds it, stepped beside the shards
simulated       a cluster in virtual time, timing only or with real gradients (tally, shared_cores, closed_forms)
"""
