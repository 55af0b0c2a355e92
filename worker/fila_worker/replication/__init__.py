"""Shards on a replicated log: replicas, checkpoints, and who lends the token bank."""
