"""Storage of parameters: the dense buffer, servers and shards, replicas, and their checkpoints."""
