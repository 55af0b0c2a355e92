"""Batches: messages with a callback that is enqueued once, when the last of them is done."""
