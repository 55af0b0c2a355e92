"""The page ``/hooks``: the scripts of queues, their counters, and trials of edited ones."""
