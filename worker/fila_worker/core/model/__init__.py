"""What a shard keeps: queues, lanes, fairness keys, leases, consumers, delays, tokens, and what of it is durable."""
