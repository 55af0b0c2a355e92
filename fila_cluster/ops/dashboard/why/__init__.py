"""The page ``/why``: why a message, a fairness key or a queue waits."""
