"""The shards of one process: their turns, failures, comings and goings."""
