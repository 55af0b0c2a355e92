"""The end of leases: acks, failed attempts, dead letters, and messages for other shards."""
