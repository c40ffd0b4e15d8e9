"""Engines: who runs the workers. Each drives the same `Epoch`, so that all give the same accounts.

epoch      one epoch's leases from supply to end: the coordinator decides, the server applies, the host is told
inline     one worker, in the caller's own thread
threads    several workers, a thread each, in this process
"""
