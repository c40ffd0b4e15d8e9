"""Synchronisation strategies: pure state machines, events in, actions out.

They hold no tensor, clock, thread, socket or random number (the import contracts in pyproject.toml see to it).

    messages      events and actions, plain values
    work          what is under way: parked, flying, waiting, supplied; every strategy reads it, none owns it
    strategy      what a strategy answers: who may begin, which gradients form a step, which come too late
    coordinator   an event in, actions out: keeps the books and asks the strategy
    registry      the strategies by name, or by where they are; the sizes that follow from a global batch
    settings      checks of what a strategy is given
    automatic     when it pays to change between sync and gba; proposes, and looks at what came of it
    synchronous, asynchronous, bounded_staleness, buffered_async, backup_workers, global_batch    one strategy each
    exchange      how replicas meet: five choices, as values
    replicated    the strategies whose trainers have dense replicas of their own, as values of these
"""
