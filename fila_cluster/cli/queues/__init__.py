"""Commands about queues and their messages."""
