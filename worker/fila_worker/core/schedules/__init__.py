"""Schedules: messages that the broker enqueues itself, one for each due time."""
