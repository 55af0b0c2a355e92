"""Counters and descriptions of a shard, for monitoring."""
