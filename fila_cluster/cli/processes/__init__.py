"""Commands that run a cluster, or a part of it."""
