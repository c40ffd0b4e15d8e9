"""Synchronisation strategies: pure state machines, events in, actions out.

They hold no tensor, clock, thread, socket or random number (the import contracts in pyproject.toml see to it).

    messages      events and actions, plain values
    work          what is under way: parked, flying, waiting, supplied; every strategy reads it, none owns it
    strategy      the two questions a strategy answers: who may begin, and which gradients form a step
    coordinator   an event in, actions out: keeps the books and asks the strategy
    registry      the strategies by name; settings: whether values fit
    synchronous, asynchronous, bounded_staleness, buffered_async, backup_workers, global_batch    one strategy each
"""
