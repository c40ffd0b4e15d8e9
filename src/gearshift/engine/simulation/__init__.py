"""A cluster in virtual time: the coordinator of real runs, driven by a heap of events."""
