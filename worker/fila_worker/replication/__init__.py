"""Shards on a replicated log: their slots, checkpoints, and who lends the token bank."""
