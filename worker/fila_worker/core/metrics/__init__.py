"""Count and describe, for those who watch a shard."""
