"""Queues with several partitions, as clients use them: one queue to the caller, several to the broker."""
