"""What a queue with several partitions promises: its fairness, its waits, its consumers."""
