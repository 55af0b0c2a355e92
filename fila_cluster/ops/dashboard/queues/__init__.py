"""The pages ``/queues`` and ``/queue``."""
