"""The commit log of a shard: what it consists of, and which of its records count."""
