"""Commands that create, change, delete, purge and redrive queues, and change the runtime config."""
