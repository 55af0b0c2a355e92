"""What a shard keeps on disk and counts in memory: its recovery, its folds, its invariants."""
