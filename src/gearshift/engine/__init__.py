"""What makes workers run: an engine turns actions into work and work into events, and decides nothing.

Every engine drives the same `sync.coordinator.Coordinator`; they differ in what a worker and a second are.

    cluster_model    what a cluster is: speeds, stragglers, failures, network, cores; plain values
    durations        how long a worker's n-th batch takes, and when the worker is away: drawn from that model
    closed_forms     what arithmetic says about sync and gba on that model
    tally            what a run came to: applied, discarded and why, staleness, lag, idle time
    simulated        virtual time, a heap of events; with gradients or timing only (shared_cores: where cores are few)

Nothing named here imports torch.
"""
