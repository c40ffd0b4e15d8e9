"""Synchronisation strategies: pure state machines, events in, actions out.

They hold no tensor, clock, thread, socket or random number (the import contracts in pyproject.toml see to it).
With one worker there is nothing to decide yet: every push is applied at once.
"""
