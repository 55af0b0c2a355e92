"""Shards on a replicated log: their slots, their checkpoints, and the lease of the token bank."""
