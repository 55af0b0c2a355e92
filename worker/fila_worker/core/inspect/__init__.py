"""Inspect queues: find messages, browse them, and read queues as they were at one moment."""
