"""The page ``/hooks``: the scripts of queues, how they fare, and trials of edited ones."""
