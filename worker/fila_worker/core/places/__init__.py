"""The concurrency of throttle keys: the places that a shard has, and the bank on shard 0 that grants them."""
