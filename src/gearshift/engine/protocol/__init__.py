"""Worker, shard and coordinator as they talk to each other over a network: messages in, messages out.

A role holds no socket, no thread and no clock: whoever runs it brings it messages and the time (`handle`, `tick`) and
carries away what it leaves in `out`. Messages may be lost, doubled, late or out of order, and every role may die
and come back: what must arrive is sent again until it is answered, and what comes twice is done once.
"""
