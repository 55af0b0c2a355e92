"""The state of a shard: queues, lanes, fairness keys, leases, consumers, delays and tokens, and how it becomes durable."""
