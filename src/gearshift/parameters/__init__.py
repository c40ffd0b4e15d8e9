"""Where parameters live: the dense buffer, servers and shards, replicas, and checkpoints of all of them."""
