"""Change queues: create, update, delete, purge, redrive."""
