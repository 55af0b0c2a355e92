"""The data of a shard on disk and its counts in memory: recovery, folds, invariants."""
